// Attention of one token a sequence over its pages: softmax(soft_cap(q · k · scale)) · v, split over
// the keys so that a long past keeps all multiprocessors busy.
//
// A block takes SPLIT_PAGES pages of one sequence and key head, for the HEADS query heads that share
// it, so keys and values are read once for all of them. A warp takes a page at a time: LANES lanes
// hold a key, 8 elements each (16 bytes of f16), so one load instruction brings 32 / LANES keys, and
// up to four loads are under way before the first is used. The softmax is online, with a maximum
// and a sum for each warp; warps, then splits, are merged in a fixed order, the splits by the block
// that arrives last, so a result does not depend on scheduling.
//
// Launch: grid [splits, kv heads · head chunks, sequences], 128 threads. Splits that a sequence does
// not have end at once, so a graph is launched with the most that may be.

#include "common/attention.cuh"

namespace ottava {

constexpr int DECODE_WARPS = 4;
// Pages of a block: fixed, so that a sequence is cut the same way whatever runs beside it.
constexpr int SPLIT_PAGES = 16;
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

// A lane's elements of one slot of a page; zeros beyond the head and for keys that nobody sees.
__device__ __forceinline__ void load_elements(float (&x)[ELEMENTS], const AttentionParams& p, uint32_t page,
                                              int which, uint32_t head, uint32_t slot, uint32_t first, bool seen) {
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) x[i] = 0.0f;
    if (!seen || first >= p.kv.head_dim) return;
    const size_t at = slot * p.kv.head_dim + first;
    if (p.kv.dtype == KvDtype::F16) {
        widen(x, *reinterpret_cast<const uint4*>(page_elements<__half>(p.kv, page, which, head) + at));
    } else {
        const __half* scales = page_scales(p.kv, page, which, head);
        const float scale = __half2float(scales[slot * p.kv.scale_groups + first / KV_SCALE_GROUP]);
        widen(x, *reinterpret_cast<const uint2*>(page_elements<int8_t>(p.kv, page, which, head) + at), scale);
    }
}

// A softmax under way: weights are 2^(score − max), `sum` is theirs, `out` is of weights · values.
template <int HEADS>
struct Running {
    float max[HEADS], sum[HEADS], out[HEADS][ELEMENTS];
};

// Loads that a warp has under way: more do not fit in registers.
constexpr int ROUNDS = 4;

// Takes up the keys of a page from slot `start` on that ROUNDS loads bring, by one warp.
template <int HEADS, int LANES>
__device__ __forceinline__ void take_keys(Running<HEADS>& state, const AttentionParams& p,
                                          const Sequence& sequence, const PageRef& entry, uint32_t start,
                                          uint32_t kv_head, uint32_t position,
                                          const float (&q)[HEADS][ELEMENTS]) {
    constexpr int KEYS = WARP / LANES;
    static_assert(PAGE_TOKENS % (KEYS * ROUNDS) == 0, "a page is a whole number of rounds");
    const uint32_t lane = threadIdx.x % WARP, first = lane % LANES * ELEMENTS;
    float scores[HEADS][ROUNDS];
    bool seen[ROUNDS];
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        const uint32_t slot = start + round * KEYS + lane / LANES;
        seen[round] = sees(sequence, p.window, position, entry.start + slot);
        float key[ELEMENTS];
        load_elements(key, p, entry.page, 0, kv_head, slot, first, seen[round]);
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
        load_elements(value, p, entry.page, 1, kv_head, start + round * KEYS + lane / LANES, first, seen[round]);
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
// `out`: the quotient where `last`, else a part again. By all threads of the block, in order.
__device__ __forceinline__ void merge(float* out, const float* parts, uint32_t count, uint32_t stride,
                                      uint32_t dim, bool last) {
    float max = -INFINITY;
    for (uint32_t i = 0; i < count; ++i) max = fmaxf(max, parts[i * stride + dim]);
    float sum = 0.0f;
    for (uint32_t i = 0; i < count; ++i) {
        const float part_max = parts[i * stride + dim];
        sum += part_max == -INFINITY ? 0.0f : exp2f(part_max - max) * parts[i * stride + dim + 1];
    }
    for (uint32_t d = threadIdx.x; d < dim; d += blockDim.x) {
        float total = 0.0f;
        for (uint32_t i = 0; i < count; ++i) {
            const float part_max = parts[i * stride + dim];
            if (part_max != -INFINITY) total = fmaf(exp2f(part_max - max), parts[i * stride + d], total);
        }
        out[d] = last ? (sum > 0.0f ? total / sum : 0.0f) : total;
    }
    if (!last && threadIdx.x == 0) {
        out[dim] = max;
        out[dim + 1] = sum;
    }
}

template <int HEADS, int LANES>
__device__ __forceinline__ void attention_decode(const AttentionParams& p) {
    extern __shared__ float parts[];  // [warps][head_dim + 2]
    __shared__ bool is_last;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, dim = p.kv.head_dim;
    const uint32_t group = p.query_heads / p.kv.kv_heads, chunks = group / HEADS;
    const uint32_t kv_head = blockIdx.y / chunks, first_head = kv_head * group + blockIdx.y % chunks * HEADS;
    wait_for_predecessor();
    if (blockIdx.z >= p.step.counts[1]) return;
    const Sequence sequence = p.step.sequences[blockIdx.z];
    if (sequence.rows_end - sequence.rows_start != 1) return;
    const uint32_t pages = sequence.pages_end - sequence.pages_start;
    const uint32_t splits = (pages + SPLIT_PAGES - 1) / SPLIT_PAGES;
    if (blockIdx.x >= splits) return;
    const uint32_t token = sequence.rows_start, position = p.step.positions[token];

    float q[HEADS][ELEMENTS];
    const uint32_t first = lane % LANES * ELEMENTS;
#pragma unroll
    for (int head = 0; head < HEADS; ++head) {
        const float* row = p.q + (static_cast<size_t>(token) * p.query_heads + first_head + head) * dim;
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) q[head][i] = first < dim ? row[first + i] : 0.0f;
    }
    Running<HEADS> state;
#pragma unroll
    for (int head = 0; head < HEADS; ++head) {
        state.max[head] = -INFINITY;
        state.sum[head] = 0.0f;
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) state.out[head][i] = 0.0f;
    }
    const uint32_t begin = blockIdx.x * SPLIT_PAGES, end = min(begin + SPLIT_PAGES, pages);
    for (uint32_t page = begin + warp; page < end; page += DECODE_WARPS) {
        const PageRef entry = p.step.pages[sequence.pages_start + page];
#pragma unroll 1
        for (uint32_t start = 0; start < PAGE_TOKENS; start += WARP / LANES * ROUNDS)
            take_keys<HEADS, LANES>(state, p, sequence, entry, start, kv_head, position, q);
    }
    join_keys<HEADS, LANES>(state);

    const uint32_t stride = dim + 2;
    const size_t part_row = static_cast<size_t>(blockIdx.z) * p.query_heads + first_head;
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
        float* whole = p.dst + (static_cast<size_t>(token) * p.query_heads + first_head + head) * dim;
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
        float* whole = p.dst + (static_cast<size_t>(token) * p.query_heads + first_head + head) * dim;
        merge(whole, p.partial + (part_row + head) * p.splits * stride, splits, stride, dim, true);
    }
}

}  // namespace ottava

#define OTTAVA_ATTENTION_DECODE(HEADS, LANES)                                                  \
    extern "C" __global__ void __launch_bounds__(128, 2)                                        \
        attention_decode_##HEADS##_##LANES(const __grid_constant__ ottava::AttentionParams p) { \
        ottava::attention_decode<HEADS, LANES>(p);                                             \
        ottava::release_dependents();                                                          \
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
