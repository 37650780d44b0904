// Prepares an attention: normalises and rotates each query and key head, queries in place. Keys and values
// are written to their pages, as f16 or as int8 with a scale per 32 elements. If all sequences have one
// token, attention_decode.cu does this itself.
//
// Launch: grid [tokens, query heads + 2 · kv heads], one warp per head. Shared memory: one head in f32.

#include "common/append.cuh"

namespace ottava {

// Mirrored by `backend::cuda::params::KvAppend`.
struct KvAppendParams {
    Step step;
    KvLayer kv;
    AttentionInputs inputs;
};
static_assert(sizeof(KvAppendParams) == 160, "the host's struct has no other padding");

}  // namespace ottava

extern "C" __global__ void __launch_bounds__(32) kv_append(const __grid_constant__ ottava::KvAppendParams p) {
    using namespace ottava;
    extern __shared__ float head[];
    wait_for_predecessor();
    const uint32_t token = blockIdx.x, index = blockIdx.y, dim = p.kv.head_dim, heads = p.inputs.query_heads;
    if (token >= p.step.counts[0]) return;
    const uint32_t position = p.step.positions[token];
    const PageRef page = page_of(p.step, p.step.sequences[p.step.sequence_of[token]], position);
    append_head(head, p.inputs, p.kv, page, token, position, index);
    if (index < heads) {
        float* out = p.inputs.q + (static_cast<size_t>(token) * heads + index) * dim;
        for (uint32_t i = threadIdx.x; i < dim; i += WARP) out[i] = head[i];
    }
}
