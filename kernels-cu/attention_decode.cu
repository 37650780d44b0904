// Attention of one token a sequence over its pages: softmax(soft_cap(q · k · scale)) · v, split over
// the keys so that a long past keeps all multiprocessors busy. In batch-invariant mode prompts come here
// too, a token at a time: a row has the bits that it has alone.
//
// A block takes some pages of one sequence and key head, for the HEADS query heads that share it, so
// keys and values are read once for all of them. A warp takes a page at a time: LANES lanes hold a key,
// 8 elements each (16 bytes of f16), so one load instruction brings 32 / LANES keys, and ROUNDS of
// them for keys and as many for values are under way before the first is used. The softmax is online,
// with a maximum and a sum for each warp; warps, then splits, are merged in a fixed order, the splits
// by the block that arrives last, so a result does not depend on scheduling.
//
// Where the inputs have keys that are in no page yet, each block prepares its own query heads first,
// and the block with the token's page its key and value: what kv_append.cu does, to the bit. Blocks
// of the same key head write the same bytes; no other sequence may have that page.
//
// Launch: grid [splits, kv heads · head chunks, sequences or rows], 128 threads; shared memory for a part a
// warp, and for HEADS + 2 heads. Splits that a sequence does not have end at once, so a graph is
// launched with the most that may be.

#include "common/attention.cuh"

namespace ottava {

constexpr int DECODE_WARPS = 4;
// As in src/backend/cuda/step.rs.
constexpr uint32_t SPLITS_MAX = 16;

// Pages of a block: a page a warp, or more where there would be too many splits. By the length of the
// sequence alone, so it is cut the same way whatever runs beside it.
__device__ __forceinline__ uint32_t split_pages(uint32_t pages) {
    constexpr uint32_t UNIT = SPLITS_MAX * DECODE_WARPS;
    return (pages + UNIT - 1) / UNIT * DECODE_WARPS;
}

constexpr int ELEMENTS = 8;  // of a key in a lane

// Eight elements of a key or a value.
__device__ __forceinline__ void widen(float (&x)[ELEMENTS], uint4 raw) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
        x[2 * i] = pair.x;
        x[2 * i + 1] = pair.y;
    }
}

__device__ __forceinline__ void widen(float (&x)[ELEMENTS], uint2 raw, float scale) {
    const uint32_t words[2] = {raw.x, raw.y};
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i)
        x[i] = static_cast<float>(static_cast<int8_t>(words[i / 4] >> 8 * (i % 4))) * scale;
}

// A softmax under way: weights are 2^(score − max), `sum` is theirs, `out` is of weights · values.
template <int HEADS>
struct Running {
    float max[HEADS], sum[HEADS], out[HEADS][ELEMENTS];
};

// Load instructions for keys, and for values, that a warp has under way: more do not fit in registers.
constexpr int ROUNDS = 4;

// What they bring to a lane: eight elements each, as they lie in the page.
struct Loaded {
    uint4 words[ROUNDS];
    float scales[ROUNDS];
};

// Starts the loads of the slots from `start` on; zeros beyond the head and for keys that nobody sees.
template <int LANES>
__device__ __forceinline__ void load(Loaded& x, const KvLayer& kv, uint32_t page, int which, uint32_t head,
                                     uint32_t start, const bool (&seen)[ROUNDS]) {
    const uint32_t lane = threadIdx.x % WARP, first = lane % LANES * ELEMENTS;
    const bool f16 = kv.dtype == KvDtype::F16;
    const uint8_t* elements = page_elements<uint8_t>(kv, page, which, head, f16 ? 2 : 1);
    const __half* scales = page_scales(kv, page, which, head) + first / KV_SCALE_GROUP;
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const uint32_t slot = start + round * (WARP / LANES) + lane / LANES, at = slot * kv.head_dim + first;
        x.words[round] = make_uint4(0, 0, 0, 0);
        x.scales[round] = 0.0f;
        if (!seen[round] || first >= kv.head_dim) continue;
        if (f16) {
            x.words[round] = *reinterpret_cast<const uint4*>(elements + 2 * at);
        } else {
            const uint2 codes = *reinterpret_cast<const uint2*>(elements + at);
            x.words[round] = make_uint4(codes.x, codes.y, 0, 0);
            x.scales[round] = __half2float(scales[slot * kv.scale_groups]);
        }
    }
}

__device__ __forceinline__ void widen(float (&x)[ELEMENTS], const Loaded& loaded, int round, bool f16) {
    const uint4 words = loaded.words[round];
    if (f16)
        widen(x, words);
    else
        widen(x, make_uint2(words.x, words.y), loaded.scales[round]);
}

// Takes up the keys of a page from slot `start` on that ROUNDS loads bring, by one warp.
template <int HEADS, int LANES>
__device__ __forceinline__ void take_keys(Running<HEADS>& state, const AttentionParams& p,
                                          const Sequence& sequence, const PageRef& entry, uint32_t start,
                                          uint32_t kv_head, uint32_t position,
                                          const float (&q)[HEADS][ELEMENTS]) {
    constexpr int KEYS = WARP / LANES;
    static_assert(PAGE_TOKENS % (KEYS * ROUNDS) == 0, "a page is a whole number of rounds");
    const uint32_t lane = threadIdx.x % WARP;
    const bool f16 = p.kv.dtype == KvDtype::F16;
    bool seen[ROUNDS];
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round)
        seen[round] = sees(sequence, p.window, position, entry.start + start + round * KEYS + lane / LANES);
    Loaded keys, values;
    load<LANES>(keys, p.kv, entry.page, 0, kv_head, start, seen);
    load<LANES>(values, p.kv, entry.page, 1, kv_head, start, seen);
    float scores[HEADS][ROUNDS];
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        float key[ELEMENTS];
        widen(key, keys, round, f16);
#pragma unroll
        for (int head = 0; head < HEADS; ++head) {
            float dot = 0.0f;
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i) dot = fmaf(q[head][i], key[i], dot);
#pragma unroll
            for (int distance = LANES / 2; distance > 0; distance /= 2)
                dot += __shfl_xor_sync(ALL_LANES, dot, distance);
            scores[head][round] = seen[round] ? score_of(p, dot * p.scale) : -INFINITY;
        }
    }
#pragma unroll
    for (int head = 0; head < HEADS; ++head) {
        float largest = state.max[head];
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round) largest = fmaxf(largest, scores[head][round]);
#pragma unroll
        for (int distance = WARP / 2; distance >= LANES; distance /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
        // Before the first key that is seen both are minus infinity, and their difference no number.
        const float correction = largest == -INFINITY ? 1.0f : exp2f(state.max[head] - largest);
        state.max[head] = largest;
        state.sum[head] *= correction;
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) state.out[head][i] *= correction;
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round)
            scores[head][round] = seen[round] ? exp2f(scores[head][round] - largest) : 0.0f;
    }
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        float value[ELEMENTS];
        widen(value, values, round, f16);
#pragma unroll
        for (int head = 0; head < HEADS; ++head) {
            state.sum[head] += scores[head][round];
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i)
                state.out[head][i] = fmaf(scores[head][round], value[i], state.out[head][i]);
        }
    }
}

// Sums over the lanes that hold the same elements of different keys.
template <int HEADS, int LANES>
__device__ __forceinline__ void join_keys(Running<HEADS>& state) {
#pragma unroll
    for (int head = 0; head < HEADS; ++head) {
#pragma unroll
        for (int distance = WARP / 2; distance >= LANES; distance /= 2) {
            state.sum[head] += __shfl_xor_sync(ALL_LANES, state.sum[head], distance);
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i)
                state.out[head][i] += __shfl_xor_sync(ALL_LANES, state.out[head][i], distance);
        }
    }
}

// Merges `count` parts, `stride` floats apart, each [head_dim sums, maximum, sum of weights], into
// `out`: the quotient where `last`, else a part again. By all threads of the block, in order. Parts
// without a key have a sum of zero; what is no number stays none.
__device__ __forceinline__ void merge(float* out, const float* parts, uint32_t count, uint32_t stride,
                                      uint32_t dim, bool last) {
    float max = -INFINITY;
    for (uint32_t i = 0; i < count; ++i) max = fmaxf(max, parts[i * stride + dim]);
    float sum = 0.0f;
    for (uint32_t i = 0; i < count; ++i) {
        const float part_max = parts[i * stride + dim], part_sum = parts[i * stride + dim + 1];
        sum += part_sum == 0.0f ? 0.0f : exp2f(part_max - max) * part_sum;
    }
    for (uint32_t d = threadIdx.x; d < dim; d += blockDim.x) {
        float total = 0.0f;
        for (uint32_t i = 0; i < count; ++i) {
            const float part_max = parts[i * stride + dim];
            if (parts[i * stride + dim + 1] != 0.0f) total = fmaf(exp2f(part_max - max), parts[i * stride + d], total);
        }
        out[d] = last && sum != 0.0f ? total / sum : total;
    }
    if (!last && threadIdx.x == 0) {
        out[dim] = max;
        out[dim + 1] = sum;
    }
}

template <int HEADS, int LANES>
__device__ __forceinline__ void attention_decode(const AttentionParams& p) {
    extern __shared__ float parts[];  // [warps][head_dim + 2], then the prepared heads
    __shared__ bool is_last;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, dim = p.kv.head_dim;
    const uint32_t query_heads = p.inputs.query_heads;
    const uint32_t group = query_heads / p.kv.kv_heads, chunks = group / HEADS;
    const uint32_t kv_head = blockIdx.y / chunks, first_head = kv_head * group + blockIdx.y % chunks * HEADS;
    wait_for_predecessor();
    const uint32_t item = p.first_row + blockIdx.z;
    if (item >= p.step.counts[p.by_rows ? 0 : 1]) return;
    const Sequence sequence = p.step.sequences[p.by_rows ? p.step.sequence_of[item] : item];
    if (!p.by_rows && sequence.rows_end - sequence.rows_start != 1) return;
    const uint32_t token = p.by_rows ? item : sequence.rows_start, position = p.step.positions[token];
    // Without those of later rows, which lie at the end of the table.
    const uint32_t newest = p.by_rows ? p.step.positions[sequence.rows_end - 1] : position;
    const uint32_t later = newest / PAGE_TOKENS - position / PAGE_TOKENS;
    const uint32_t pages = sequence.pages_end - sequence.pages_start - later;
    const uint32_t own_pages = split_pages(pages), splits = (pages + own_pages - 1) / own_pages;
    if (blockIdx.x >= splits) return;
    const uint32_t begin = blockIdx.x * own_pages, end = min(begin + own_pages, pages);
    const PageRef* entries = p.step.pages + sequence.pages_start;

    const float* prepared = p.inputs.q + (static_cast<size_t>(token) * query_heads + first_head) * dim;
    if (p.inputs.k) {
        float* heads = parts + DECODE_WARPS * (dim + 2);
        const uint32_t start = position / PAGE_TOKENS * PAGE_TOKENS;
        const bool own = entries[begin].start <= start && (end == pages || entries[end].start > start);
        uint32_t page = end - 1;
        while (own && entries[page].start > start) --page;
        for (uint32_t i = warp; i < (own ? HEADS + 2 : HEADS); i += DECODE_WARPS) {
            const uint32_t index = i < HEADS ? first_head + i : query_heads + (i - HEADS) * p.kv.kv_heads + kv_head;
            append_head(heads + i * dim, p.inputs, p.kv, entries[page], token, position, index);
        }
        __syncthreads();
        prepared = heads;
    }
    float q[HEADS][ELEMENTS];
    const uint32_t first = lane % LANES * ELEMENTS;
#pragma unroll
    for (int head = 0; head < HEADS; ++head) {
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) q[head][i] = first < dim ? prepared[head * dim + first + i] : 0.0f;
    }
    Running<HEADS> state;
#pragma unroll
    for (int head = 0; head < HEADS; ++head) {
        state.max[head] = -INFINITY;
        state.sum[head] = 0.0f;
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) state.out[head][i] = 0.0f;
    }
    for (uint32_t page = begin + warp; page < end; page += DECODE_WARPS) {
        const PageRef entry = entries[page];
        if (!sees_page(sequence, p.window, position, entry.start)) continue;
#pragma unroll 1
        for (uint32_t start = 0; start < PAGE_TOKENS; start += WARP / LANES * ROUNDS)
            take_keys<HEADS, LANES>(state, p, sequence, entry, start, kv_head, position, q);
    }
    join_keys<HEADS, LANES>(state);

    const uint32_t stride = dim + 2;
    const size_t part_row = static_cast<size_t>(blockIdx.z) * query_heads + first_head;
#pragma unroll
    for (int head = 0; head < HEADS; ++head) {
        __syncthreads();
        float* part = parts + warp * stride;
        if (lane < LANES && first < dim) {
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i) part[first + i] = state.out[head][i];
        }
        if (lane == 0) {
            part[dim] = state.max[head];
            part[dim + 1] = state.sum[head];
        }
        __syncthreads();
        float* whole = p.dst + (static_cast<size_t>(token) * query_heads + first_head + head) * dim;
        float* split = p.partial + ((part_row + head) * p.splits + blockIdx.x) * stride;
        merge(splits == 1 ? whole : split, parts, DECODE_WARPS, stride, dim, splits == 1);
    }
    if (splits == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t* arrived = p.arrived + static_cast<size_t>(blockIdx.z) * gridDim.y + blockIdx.y;
        is_last = atomicAdd(arrived, 1) == splits - 1;
        if (is_last) *arrived = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
#pragma unroll
    for (int head = 0; head < HEADS; ++head) {
        float* whole = p.dst + (static_cast<size_t>(token) * query_heads + first_head + head) * dim;
        merge(whole, p.partial + (part_row + head) * p.splits * stride, splits, stride, dim, true);
    }
}

}  // namespace ottava

#define OTTAVA_ATTENTION_DECODE(HEADS, LANES)                                                  \
    extern "C" __global__ void __launch_bounds__(128, 2)                                        \
        attention_decode_##HEADS##_##LANES(const __grid_constant__ ottava::AttentionParams p) { \
        ottava::attention_decode<HEADS, LANES>(p);                                             \
    }
// Query heads of a block, lanes of a key: heads of at most 64, 128 and 256 elements.
#define OTTAVA_ATTENTION_DECODE_HEADS(HEADS) \
    OTTAVA_ATTENTION_DECODE(HEADS, 8)        \
    OTTAVA_ATTENTION_DECODE(HEADS, 16)       \
    OTTAVA_ATTENTION_DECODE(HEADS, 32)
OTTAVA_ATTENTION_DECODE_HEADS(1)
OTTAVA_ATTENTION_DECODE_HEADS(2)
OTTAVA_ATTENTION_DECODE_HEADS(3)
OTTAVA_ATTENTION_DECODE_HEADS(4)
