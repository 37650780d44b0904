// llama.cpp's logit error on our golden cases, measured as tests/golden measures ours: the root mean square
// difference to the f64 reference of the ten best logits of every generated position, a number a case.
//
//   g++ -O2 -I LLAMA/include -I LLAMA/ggml/include -I LLAMA/vendor benches/llama_logits.cpp
//       -L LLAMA/build/bin -lllama -lggml -lggml-base -Wl,-rpath,LLAMA/build/bin -o llama_logits
//   llama_logits smollm2.gguf tests/golden/smollm2.json
#include <cmath>
#include <cstdio>
#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "llama.h"

static void quiet(ggml_log_level, const char *, void *) {}

int main(int count, char **arguments) {
    if (count != 3) {
        std::fprintf(stderr, "usage: llama_logits MODEL.gguf GOLDEN.json\n");
        return 2;
    }
    llama_log_set(quiet, nullptr);
    llama_backend_init();
    llama_model *model = llama_model_load_from_file(arguments[1], llama_model_default_params());
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = 2048;
    llama_context *context = model ? llama_init_from_model(model, params) : nullptr;
    if (!context) {
        std::fprintf(stderr, "%s cannot be loaded\n", arguments[1]);
        return 1;
    }
    std::ifstream file(arguments[2]);
    for (const auto &golden : nlohmann::json::parse(file)) {
        std::vector<llama_token> ids = golden["tokens"];
        const size_t prompt = ids.size();
        for (llama_token id : golden["greedy"]) ids.push_back(id);
        llama_memory_clear(llama_get_memory(context), true);
        llama_batch batch = llama_batch_init(static_cast<int>(ids.size()), 0, 1);
        batch.n_tokens = static_cast<int>(ids.size());
        for (size_t i = 0; i < ids.size(); i++) {
            batch.token[i] = ids[i];
            batch.pos[i] = static_cast<llama_pos>(i);
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        if (llama_decode(context, batch) != 0) return 1;
        double squares = 0;
        size_t compared = 0;
        for (size_t i = 0; i < golden["top"].size(); i++) {
            const float *logits = llama_get_logits_ith(context, static_cast<int>(prompt - 1 + i));
            for (const auto &pair : golden["top"][i]) {
                squares += std::pow(logits[pair[0].get<int>()] - pair[1].get<double>(), 2);
                compared++;
            }
        }
        std::printf("%.4f ", std::sqrt(squares / compared));
        llama_batch_free(batch);
    }
    std::printf("\n");
    llama_free(context);
    llama_model_free(model);
}
