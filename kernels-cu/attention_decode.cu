// Attention of one token per sequence over its pages: softmax(soft_cap(q · k · scale)) · v, split over the
// keys so that a long past keeps all multiprocessors busy. In batch-invariant mode, prompts use this kernel,
// too, one token at a time, so that a row has the same bits as alone.
//
// A block handles some pages of one sequence and key head, for the HEADS query heads that share it. So keys
// and values are read once for all of these heads. Only pages visible through the layer's window, the
// sequence's window and its sinks are distributed.
// A warp processes one page at a time. LANES lanes hold a key, 8 elements each (16 bytes of f16), so one load
// instruction reads 32 / LANES keys. ROUNDS such loads for keys and as many for values are in flight before
// the first one is used. The softmax is online, with a maximum and a sum per warp. Warps, then splits, are
// merged in a fixed order, the splits by the block that arrives last, so a result does not depend on
// scheduling.
//
// If the inputs include keys that are not in a page yet, each block first prepares its own query heads. The
// block with the token's page also prepares the token's key and value, bit for bit like kv_append.cu. Blocks
// of the same key head write the same bytes; no other sequence may have that page.
//
// Launch: grid [splits, kv heads · head chunks, sequences or rows], 128 threads; shared memory for a partial
// result per warp and head, and for HEADS + 2 heads. Blocks of splits that a sequence does not have return at
// once, so a graph is launched with the maximum number of splits.

#include "common/attention.cuh"

namespace ottava {

// Pages per block, determined by the row's visible pages alone: a past is split in the same way whatever else
// runs. A warp takes one page if SPLITS_SHORT blocks suffice. For a longer past, both the pages per warp and
// the number of blocks grow with the square root of the length: one sequence waits for its longest block, and
// a batch pays for the start and the end of every block.
__device__ __forceinline__ uint32_t split_pages(uint32_t pages) {
    const uint32_t rounds = (pages + DECODE_WARPS - 1) / DECODE_WARPS;
    uint32_t each = 1;
    while (SPLITS_SHORT * each < SPLITS_MAX && SPLITS_SHORT * each * each < rounds) ++each;
    return max(each, (rounds + SPLITS_MAX - 1) / SPLITS_MAX) * DECODE_WARPS;
}

constexpr int ELEMENTS = 8;  // elements of a key per lane

// Widens eight elements of a key or a value: f16, or codes that are scaled later.
template <bool F16>
__device__ __forceinline__ void widen(float (&x)[ELEMENTS], uint4 raw) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < ELEMENTS / 2; ++i) {
        if (F16) {
            const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
            x[2 * i] = pair.x;
            x[2 * i + 1] = pair.y;
        } else {
            const uint32_t pair = words[i / 2] >> 16 * (i % 2);
            x[2 * i] = static_cast<int8_t>(pair);
            x[2 * i + 1] = static_cast<int8_t>(pair >> 8);
        }
    }
}

// Running softmax: weights are 2^(score − max), `sum` is the sum of weights, `out` the sum of weights ·
// values.
template <int HEADS>
struct Running {
    float max[HEADS], sum[HEADS], out[HEADS][ELEMENTS];
};

// A row, and the block's part of its pages.
struct Split {
    Sequence sequence;
    const PageRef* entries;
    SeenPages seen;
    uint32_t token, position;
    uint32_t pages, splits;  // of the row
    uint32_t begin, end;     // the block's part of the pages

    // Initialises it; returns false if the block has no pages.
    __device__ bool find(const AttentionParams& p) {
        const uint32_t item = p.first_row + blockIdx.z;
        if (item >= p.step.counts[p.by_rows ? 0 : 1]) return false;
        sequence = p.step.sequences[p.by_rows ? p.step.sequence_of[item] : item];
        if (!p.by_rows && sequence.rows_end - sequence.rows_start != 1) return false;
        token = p.by_rows ? item : sequence.rows_start;
        position = p.step.positions[token];
        entries = p.step.pages + sequence.pages_start;
        seen = seen_pages(entries, sequence, p.window, position, position);
        pages = seen.count();
        const uint32_t own = split_pages(pages);
        splits = (pages + own - 1) / own;
        begin = blockIdx.x * own;
        end = min(begin + own, pages);
        return blockIdx.x < splits;
    }

    __device__ PageRef page(uint32_t index) const { return entries[seen.entry(index)]; }
};

// Load instructions for keys, and for values, in flight per warp; registers limit their number.
constexpr int ROUNDS = 4;

// The loaded data of a lane: eight elements of each key and value, as stored in the page; codes fill the
// first two words.
struct Loaded {
    uint4 keys[ROUNDS], values[ROUNDS];
    float key_scales[ROUNDS], value_scales[ROUNDS];
    uint32_t seen;  // bitmask of visible slots, starting at the lane's first
};

// Starts the loads of a page from slot `start` on; zeros after the end of the head and for hidden keys.
template <int LANES, bool F16>
__device__ __forceinline__ void load(Loaded& x, const AttentionParams& p, const Split& split, const PageRef& page,
                                     uint32_t start, uint32_t kv_head) {
    constexpr int KEYS = WARP / LANES;
    static_assert(PAGE_TOKENS % (KEYS * ROUNDS) == 0, "a page is a whole number of rounds");
    const KvLayer& kv = p.kv;
    const uint32_t lane = threadIdx.x % WARP, first = lane % LANES * ELEMENTS, own = start + lane / LANES;
    x.seen = seen_slots(split.sequence, p.window, split.position, page.start) >> own;
    const uint8_t* base = kv.base + page.page * kv.page_bytes;
    // Offsets within a page fit in 32 bits.
    const uint32_t line = kv_head * PAGE_TOKENS + own, values = kv.kv_heads * PAGE_TOKENS;
    const uint8_t* elements = base + (line * kv.head_dim + first) * (F16 ? 2 : 1);
    const __half* scales = reinterpret_cast<const __half*>(base + 2 * values * kv.head_dim) +
                           (line * kv.scale_groups + first / KV_SCALE_GROUP);
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        x.keys[round] = x.values[round] = make_uint4(0, 0, 0, 0);
        x.key_scales[round] = x.value_scales[round] = 0.0f;
        if (!(x.seen >> round * KEYS & 1) || first >= kv.head_dim) continue;
        const uint32_t at = round * KEYS * kv.head_dim, behind = at + values * kv.head_dim;
        if (F16) {
            x.keys[round] = *reinterpret_cast<const uint4*>(elements + 2 * at);
            x.values[round] = *reinterpret_cast<const uint4*>(elements + 2 * behind);
        } else {
            const uint2 key = *reinterpret_cast<const uint2*>(elements + at);
            const uint2 value = *reinterpret_cast<const uint2*>(elements + behind);
            x.keys[round] = make_uint4(key.x, key.y, 0, 0);
            x.values[round] = make_uint4(value.x, value.y, 0, 0);
            x.key_scales[round] = __half2float(scales[round * KEYS * kv.scale_groups]);
            x.value_scales[round] = __half2float(scales[(round * KEYS + values) * kv.scale_groups]);
        }
    }
}

// The scores of the loaded keys; minus infinity for hidden ones.
template <int HEADS, int LANES, bool F16>
__device__ __forceinline__ void score(float (&scores)[HEADS][ROUNDS], const Loaded& x, float soft_cap,
                                      const float (&q)[HEADS][ELEMENTS]) {
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        float key[ELEMENTS];
        widen<F16>(key, x.keys[round]);
#pragma unroll
        for (int head = 0; head < HEADS; ++head) {
            float dot = 0.0f;
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i) dot = fmaf(q[head][i], key[i], dot);
            // A lane's elements share a scale.
            if (!F16) dot *= x.key_scales[round];
#pragma unroll
            for (int distance = LANES / 2; distance > 0; distance /= 2)
                dot += __shfl_xor_sync(ALL_LANES, dot, distance);
            scores[head][round] = dot;
        }
    }
    if (soft_cap > 0.0f) {
#pragma unroll
        for (int i = 0; i < HEADS * ROUNDS; ++i) {
            float& one = scores[i / ROUNDS][i % ROUNDS];
            one = capped(one, soft_cap);
        }
    }
#pragma unroll
    for (int i = 0; i < HEADS * ROUNDS; ++i) {
        float& one = scores[i / ROUNDS][i % ROUNDS];
        one = x.seen >> i % ROUNDS * (WARP / LANES) & 1 ? one : -INFINITY;
    }
}

// Adds the loaded keys of one warp to the softmax.
template <int HEADS, int LANES, bool F16>
__device__ __forceinline__ void take_keys(Running<HEADS>& state, const Loaded& x, float soft_cap,
                                          const float (&q)[HEADS][ELEMENTS]) {
    float scores[HEADS][ROUNDS];
    score<HEADS, LANES, F16>(scores, x, soft_cap, q);
#pragma unroll
    for (int head = 0; head < HEADS; ++head) {
        float largest = state.max[head];
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round) largest = fmaxf(largest, scores[head][round]);
#pragma unroll
        for (int distance = WARP / 2; distance >= LANES; distance /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, distance));
        // Before the first visible key both are minus infinity, and their difference would be NaN.
        const float base = largest == -INFINITY ? 0.0f : largest;
        const float correction = ex2_approx_ftz(state.max[head] - base);
        state.max[head] = largest;
        state.sum[head] *= correction;
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) state.out[head][i] *= correction;
#pragma unroll
        for (int round = 0; round < ROUNDS; ++round) {
            scores[head][round] = ex2_approx_ftz(scores[head][round] - base);
            state.sum[head] += scores[head][round];
        }
    }
#pragma unroll
    for (int round = 0; round < ROUNDS; ++round) {
        float value[ELEMENTS];
        widen<F16>(value, x.values[round]);
#pragma unroll
        for (int head = 0; head < HEADS; ++head) {
            const float weight = F16 ? scores[head][round] : scores[head][round] * x.value_scales[round];
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i) state.out[head][i] = fmaf(weight, value[i], state.out[head][i]);
        }
    }
}

// Processes this warp's pages from `page` on. The first keys of `page` are loaded already.
template <int HEADS, int LANES, bool F16>
__device__ __forceinline__ void take_pages(Running<HEADS>& state, Loaded& x, const AttentionParams& p,
                                           const Split& split, uint32_t page, uint32_t kv_head,
                                           const float (&q)[HEADS][ELEMENTS]) {
    constexpr uint32_t STEP = WARP / LANES * ROUNDS;
    PageRef entry = split.page(page);
    uint32_t start = 0;
    while (true) {
        take_keys<HEADS, LANES, F16>(state, x, p.soft_cap, q);
        start = (start + STEP) % PAGE_TOKENS;
        if (start == 0) {
            page += DECODE_WARPS;
            if (page >= split.end) break;
            entry = split.page(page);
        }
        load<LANES, F16>(x, p, split, entry, start, kv_head);
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

// Merges `count` parts, `stride` floats apart, each [head_dim sums, maximum, sum of weights], into `out`: the
// quotient if `last`, otherwise another part. Called by each of `sharers` warps that share the head; a warp
// merges 64 of every 64 · `sharers` sums. Adds in a fixed order. Parts without a key have a sum of zero; NaN
// propagates.
__device__ __forceinline__ void merge(float* out, const float* parts, uint32_t count, uint32_t stride, uint32_t dim,
                                      uint32_t sharer, uint32_t sharers, bool last) {
    constexpr int HALVES = SPLITS_MAX / WARP;
    static_assert(HALVES * WARP == SPLITS_MAX, "a lane has the weight of a part of each half");
    const uint32_t lane = threadIdx.x % WARP;
    float maxima[HALVES], weights[HALVES], sums[HALVES], max = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
        const uint32_t part = WARP * half + lane;
        maxima[half] = part < count ? parts[part * stride + dim] : -INFINITY;
        sums[half] = part < count ? parts[part * stride + dim + 1] : 0.0f;
        max = fmaxf(max, maxima[half]);
    }
    max = warp_max(max);
#pragma unroll
    for (int half = 0; half < HALVES; ++half) {
        weights[half] = sums[half] == 0.0f ? 0.0f : ex2_approx_ftz(maxima[half] - max);
        sum += weights[half] * sums[half];
    }
    sum = warp_sum(sum);
    const float inverse = last && sum != 0.0f ? 1.0f / sum : 1.0f;
    for (uint32_t begin = 2 * WARP * sharer; begin < dim; begin += 2 * WARP * sharers) {
        const uint32_t d = begin + 2 * lane;
        float2 total = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int half = 0; half < HALVES; ++half) {
            const uint32_t first = WARP * half, parts_here = count > first ? min(count - first, uint32_t(WARP)) : 0;
#pragma unroll 8
            for (uint32_t i = 0; i < parts_here; ++i) {
                const float weight = __shfl_sync(ALL_LANES, weights[half], i);
                if (d >= dim) continue;
                const float2 x = *reinterpret_cast<const float2*>(parts + (first + i) * stride + d);
                total.x = fmaf(weight, x.x, total.x);
                total.y = fmaf(weight, x.y, total.y);
            }
        }
        if (d < dim) *reinterpret_cast<float2*>(out + d) = make_float2(total.x * inverse, total.y * inverse);
    }
    if (!last && sharer == 0 && lane == 0) *reinterpret_cast<float2*>(out + dim) = make_float2(max, sum);
}

// Joins the warps' results. If the row has more splits, stores them as a part, and the last block joins the
// parts.
template <int HEADS, int LANES>
__device__ __forceinline__ void finish(const Running<HEADS>& state, const AttentionParams& p, const Split& split,
                                       float* parts, uint32_t first_head) {
    __shared__ bool is_last;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, dim = p.kv.head_dim, stride = dim + 2;
    const uint32_t first = lane % LANES * ELEMENTS;
#pragma unroll
    for (int head = 0; head < HEADS; ++head) {
        float* part = parts + (warp * HEADS + head) * stride;
        if (lane < LANES && first < dim) {
#pragma unroll
            for (int i = 0; i < ELEMENTS; ++i) part[first + i] = state.out[head][i];
        }
        if (lane == 0) {
            part[dim] = state.max[head];
            part[dim + 1] = state.sum[head];
        }
    }
    __syncthreads();
    // One or several warps per head, or several heads per warp, one after another.
    constexpr uint32_t SHARERS = HEADS < DECODE_WARPS ? DECODE_WARPS / HEADS : 1;
    const bool only = split.splits == 1;
    const auto merge_heads = [&](bool of_block) {
        for (uint32_t unit = warp; unit < HEADS * SHARERS; unit += DECODE_WARPS) {
            const uint32_t head = unit % HEADS, sharer = unit / HEADS, query_head = first_head + head;
            const size_t row = static_cast<size_t>(blockIdx.z) * p.inputs.query_heads + query_head;
            float* whole = p.dst + (static_cast<size_t>(split.token) * p.inputs.query_heads + query_head) * dim;
            float* of_splits = p.partial + row * p.splits * stride;
            if (of_block)
                merge(only ? whole : of_splits + blockIdx.x * stride, parts + head * stride, DECODE_WARPS,
                      HEADS * stride, dim, sharer, SHARERS, only);
            else
                merge(whole, of_splits, split.splits, stride, dim, sharer, SHARERS, true);
        }
    };
    merge_heads(true);
    if (only) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t* arrived = p.arrived + static_cast<size_t>(blockIdx.z) * gridDim.y + blockIdx.y;
        is_last = atomicAdd(arrived, 1) == split.splits - 1;
        if (is_last) *arrived = 0;
    }
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    merge_heads(false);
}

template <int HEADS, int LANES>
__device__ __forceinline__ void attention_decode(const AttentionParams& p) {
    extern __shared__ float parts[];  // [warps][HEADS][head_dim + 2], then the prepared heads
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, dim = p.kv.head_dim;
    const uint32_t query_heads = p.inputs.query_heads, group = query_heads / p.kv.kv_heads, chunks = group / HEADS;
    const uint32_t kv_head = blockIdx.y / chunks, first_head = kv_head * group + blockIdx.y % chunks * HEADS;
    const bool f16 = p.kv.dtype == KvDtype::F16;
    // The tables are copied by the host before the step's first kernel, and no kernel writes them.
    Split split;
    if (!split.find(p)) {
        // Some block of each grid must wait, because later kernels rely on this kernel's predecessor having
        // ended, too.
        if (blockIdx.x == 0) wait_for_predecessor();
        return;
    }
    // Early loads are safe if this kernel also appends. Then all sequences have one token, and the only page
    // of this sequence that is written in this step is its last one, by this kernel
    // (`StepBuffers::writes_apart`). All other pages were written before this step: the copy of the tables
    // between two steps waits for kernels, as they wait for it. Otherwise the predecessor may be
    // kv_append.cu, still writing, so loads wait first.
    const uint32_t page = split.begin + warp;
    const bool any = page < split.end, early = p.inputs.k && page + 1 < split.pages;
    Loaded loaded;
    const auto load_first = [&] {
        const PageRef entry = split.page(page);
        if (f16)
            load<LANES, true>(loaded, p, split, entry, 0, kv_head);
        else
            load<LANES, false>(loaded, p, split, entry, 0, kv_head);
    };
    if (any && early) load_first();
    wait_for_predecessor();

    const float* prepared = p.inputs.q + (static_cast<size_t>(split.token) * query_heads + first_head) * dim;
    if (p.inputs.k) {
        float* heads = parts + DECODE_WARPS * HEADS * (dim + 2);
        const PageRef last = split.page(split.pages - 1);
        const bool appends = split.end == split.pages;
        for (uint32_t i = warp; i < (appends ? HEADS + 2 : HEADS); i += DECODE_WARPS) {
            const uint32_t index = i < HEADS ? first_head + i : query_heads + (i - HEADS) * p.kv.kv_heads + kv_head;
            append_head(heads + i * dim, p.inputs, p.kv, last, split.token, split.position, index);
        }
        __syncthreads();
        prepared = heads;
    }
    float q[HEADS][ELEMENTS];
    const uint32_t first = lane % LANES * ELEMENTS;
    Running<HEADS> state;
#pragma unroll
    for (int head = 0; head < HEADS; ++head) {
        state.max[head] = -INFINITY;
        state.sum[head] = 0.0f;
#pragma unroll
        for (int i = 0; i < ELEMENTS; ++i) {
            q[head][i] = first < dim ? prepared[head * dim + first + i] * p.scale : 0.0f;
            state.out[head][i] = 0.0f;
        }
    }
    if (any) {
        if (!early) load_first();
        if (f16)
            take_pages<HEADS, LANES, true>(state, loaded, p, split, page, kv_head, q);
        else
            take_pages<HEADS, LANES, false>(state, loaded, p, split, page, kv_head, q);
    }
    join_keys<HEADS, LANES>(state);
    finish<HEADS, LANES>(state, p, split, parts, first_head);
}

}  // namespace ottava

#define OTTAVA_ATTENTION_DECODE(HEADS, LANES)                                                  \
    extern "C" __global__ void __launch_bounds__(128, HEADS <= 4 ? 3 : 2)                       \
        attention_decode_##HEADS##_##LANES(const __grid_constant__ ottava::AttentionParams p) { \
        ottava::attention_decode<HEADS, LANES>(p);                                             \
    }
// Query heads per block, and lanes per key: 8, 16 and 32 lanes for heads of at most 64, 128 and 256 elements.
#define OTTAVA_ATTENTION_DECODE_HEADS(HEADS) \
    OTTAVA_ATTENTION_DECODE(HEADS, 8)        \
    OTTAVA_ATTENTION_DECODE(HEADS, 16)       \
    OTTAVA_ATTENTION_DECODE(HEADS, 32)
OTTAVA_ATTENTION_DECODE_HEADS(1)
OTTAVA_ATTENTION_DECODE_HEADS(2)
OTTAVA_ATTENTION_DECODE_HEADS(3)
OTTAVA_ATTENTION_DECODE_HEADS(4)
OTTAVA_ATTENTION_DECODE_HEADS(5)
OTTAVA_ATTENTION_DECODE_HEADS(7)
