// Attention of prompts over pages: flash attention (Dao 2023) on mma.m16n8k16. A block handles QUERIES rows
// of one sequence and query head, a warp 16 of them. Keys and values pass through shared memory as f16, KEYS
// at a time, whatever the dtype of the pages. Scores, sums and outputs are f32.
//
// The values of a tile are copied while its scores are computed, and the keys of the next tile while the
// values are weighted. Most tiles are entirely visible to all rows of the block; only the others are masked.
//
// A NaN value makes the results of the rows that see it NaN, and no others. If all rows see all keys of a
// tile, that follows from the sums. In a masked tile a weight of zero would not keep a NaN from a sum. There,
// NaN values are replaced by zeros and their keys are marked, and the scores of rows that see those keys
// become NaN.
//
// Launch: grid [query heads, tiles], 128 threads. The host lists the tiles, those with the most keys first;
// they cover the sequences of more than one row (attention_decode.cu handles the others).

#include "common/attention.cuh"

namespace ottava {

constexpr int PREFILL_WARPS = 4;
constexpr int QUERIES = 16 * PREFILL_WARPS;
static_assert(QUERIES == TILE_ROWS, "the host's tiles");

// Elements between rows in shared memory: 16 bytes more than a row, so that the eight rows of a matrix read
// by ldmatrix are in different banks.
template <int DIM>
constexpr int PREFILL_STRIDE = DIM + 8;

// A block's rows of a sequence, and the pages visible to them.
struct Prompt {
    uint32_t sequence;
    uint32_t oldest, newest;  // positions of its rows, which are consecutive
    SeenPages seen;           // entries of the step's page table

    __device__ void find(const AttentionParams& p, uint2 tile) {
        sequence = tile.x;
        const Sequence own = p.step.sequences[sequence];
        const uint32_t first = own.rows_start + tile.y;
        oldest = p.step.positions[first];
        newest = oldest + min(static_cast<uint32_t>(QUERIES), own.rows_end - first) - 1;
        seen = seen_pages(p.step.pages + own.pages_start, own, p.window, oldest, newest);
        seen.sinks_begin += own.pages_start;
        seen.sinks_end += own.pages_start;
        seen.begin += own.pages_start;
        seen.end += own.pages_start;
    }

    // Offset of this block's head in the first row, for queries and results.
    __device__ size_t first_element(const AttentionParams& p) const {
        const size_t row = p.step.sequences[sequence].rows_start + p.tiles[blockIdx.y].y;
        return (row * p.inputs.query_heads + blockIdx.x) * p.kv.head_dim;
    }

    // The first entry of the tile after the one at `entry`.
    __device__ uint32_t next(uint32_t entry, uint32_t pages) const {
        entry += pages;
        return entry >= seen.sinks_end && entry < seen.begin ? seen.begin : entry;
    }

    // A page; after the last one, a dummy that starts beyond all visible positions.
    __device__ PageRef page(const Step& step, uint32_t entry) const {
        return entry < seen.end ? step.pages[entry] : PageRef{0, UINT32_MAX - PAGE_TOKENS};
    }

    // Whether all rows see all keys of `pages` pages from `entry` on.
    __device__ bool sees_all(const AttentionParams& p, uint32_t entry, uint32_t pages) const {
        if (entry + pages > seen.end) return false;
        const uint32_t start = p.step.pages[entry].start;
        const uint32_t last = p.step.pages[entry + pages - 1].start + PAGE_TOKENS - 1, age = newest - start;
        const Sequence& own = p.step.sequences[sequence];
        return last <= oldest && age < p.window && (age < own.window || last < own.sinks);
    }
};

template <int DIM, int KEYS>
struct PrefillShared {
    __half q[QUERIES][PREFILL_STRIDE<DIM>];
    __half k[KEYS][PREFILL_STRIDE<DIM>];
    __half v[KEYS][PREFILL_STRIDE<DIM>];
    Prompt prompt;
    // Keys of a masked tile with a NaN value: a bit per key, and a word for the keys that a warp copies.
    uint32_t poisoned[PREFILL_WARPS];
};

// The rows of a tile that a warp copies, and a lane's 16 bytes of each: in row `FIRST + i · SLOTS + lane /
// CHUNKS`, from element `lane % CHUNKS · 8` on.
template <int DIM, int KEYS>
struct Share {
    static constexpr uint32_t CHUNKS = DIM / 8, SLOTS = WARP / CHUNKS, ROWS = KEYS / PREFILL_WARPS;
    static_assert(PAGE_TOKENS % ROWS == 0 && ROWS % SLOTS == 0, "a warp copies rows of one page");
};

// Two f32 rounded to f16 as one operand register.
__device__ __forceinline__ uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

// Eight codes times their scale as f16, saturated; NaN if the scale is NaN.
__device__ __forceinline__ uint4 dequantised(uint2 codes, __half scale) {
    const __half2 scales = __half2half2(scale), most = __float2half2_rn(65504.0f);
    // A code plus 128 is the lowest byte of an f16 from 1024 on.
    const uint32_t words[2] = {codes.x ^ 0x80808080u, codes.y ^ 0x80808080u};
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t pair = prmt(words[i / 2], 0x64646464u, i % 2 ? 0x4342 : 0x4140);
        const __half2 code = __hsub2(*reinterpret_cast<const __half2*>(&pair), __float2half2_rn(1152.0f));
        const __half2 value = __hmax2_nan(__hmin2_nan(__hmul2(code, scales), most), __hneg2(most));
        out[i] = *reinterpret_cast<const uint32_t*>(&value);
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

// Copies this warp's rows of the tile at `entry` from the keys or values of their page; f16 asynchronously.
// Zeros after the end of the head and after the last position visible to any row, where memory was never
// written.
template <int DIM, int KEYS>
__device__ __forceinline__ void copy_rows(__half (&tile)[KEYS][PREFILL_STRIDE<DIM>],
                                          const AttentionParams& p, const Prompt& prompt, uint32_t entry,
                                          int which, uint32_t head) {
    using Own = Share<DIM, KEYS>;
    const KvLayer& kv = p.kv;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = lane % Own::CHUNKS * 8;
    const uint32_t row = warp * Own::ROWS + lane / Own::CHUNKS, slot = row % PAGE_TOKENS;
    const PageRef page = prompt.page(p.step, entry + warp * Own::ROWS / PAGE_TOKENS);
    const uint32_t written = page.start <= prompt.newest ? prompt.newest - page.start + 1 : 0;
    // Offsets within a page fit in 32 bits, which takes fewer registers.
    const uint8_t* base = kv.base + page.page * kv.page_bytes;
    const uint32_t line = (which * kv.kv_heads + head) * PAGE_TOKENS + slot;
    if (kv.dtype == KvDtype::F16) {
        const __half* from = reinterpret_cast<const __half*>(base) + (line * kv.head_dim + first);
        if (written >= PAGE_TOKENS && kv.head_dim == DIM) {
            // The usual case; its addresses differ by constants.
#pragma unroll
            for (uint32_t i = 0; i < Own::ROWS; i += Own::SLOTS)
                cp_async_16(&tile[row + i][first], from + i * DIM, true);
        } else {
#pragma unroll 2
            for (uint32_t i = 0; i < Own::ROWS; i += Own::SLOTS)
                cp_async_16(&tile[row + i][first], from + i * kv.head_dim,
                            slot + i < written && first < kv.head_dim);
        }
        cp_async_commit();
        return;
    }
    const int8_t* from = reinterpret_cast<const int8_t*>(base) + (line * kv.head_dim + first);
    const __half* scales = reinterpret_cast<const __half*>(base + 2 * kv.kv_heads * PAGE_TOKENS * kv.head_dim) +
                           (line * kv.scale_groups + first / KV_SCALE_GROUP);
#pragma unroll 2
    for (uint32_t i = 0; i < Own::ROWS; i += Own::SLOTS) {
        uint4 halves = make_uint4(0, 0, 0, 0);
        if (slot + i < written && first < kv.head_dim) {
            const uint2 codes = *reinterpret_cast<const uint2*>(from + i * kv.head_dim);
            halves = dequantised(codes, scales[i * kv.scale_groups]);
        }
        *reinterpret_cast<uint4*>(&tile[row + i][first]) = halves;
    }
}

// Replaces NaN among eight f16 by zero; returns whether there was any.
__device__ __forceinline__ bool take_nan(uint4& raw) {
    uint32_t* words = &raw.x;
    uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const __half2 pair = *reinterpret_cast<const __half2*>(&words[i]);
        const uint32_t mask = __hneu2_mask(pair, pair);
        words[i] &= ~mask;
        found |= mask;
    }
    return found != 0;
}

// Replaces NaN values by zeros and marks their keys, in the rows that this warp has copied.
template <int DIM, int KEYS>
__device__ __forceinline__ void mark_poisoned(PrefillShared<DIM, KEYS>& shared) {
    using Own = Share<DIM, KEYS>;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = lane % Own::CHUNKS * 8;
    uint32_t poisoned = 0;
#pragma unroll
    for (uint32_t i = lane / Own::CHUNKS; i < Own::ROWS; i += Own::SLOTS) {
        uint4& at = *reinterpret_cast<uint4*>(&shared.v[warp * Own::ROWS + i][first]);
        uint4 raw = at;
        if (!take_nan(raw)) continue;
        at = raw;
        poisoned |= 1u << i;
    }
    poisoned = __reduce_or_sync(ALL_LANES, poisoned);
    if (lane == 0) shared.poisoned[warp] = poisoned;
}

// A warp's 16 rows: lane (g, t) has rows g and g + 8, and columns 2t and 2t + 1 of every 8.
template <int DIM>
struct Rows16 {
    float max[2], sum[2], out[DIM / 8][4];
};

// Products of this warp's queries and a tile's keys.
template <int DIM, int KEYS>
__device__ __forceinline__ void multiply_keys(float (&scores)[KEYS / 8][4], const PrefillShared<DIM, KEYS>& shared) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll
    for (int d = 0; d < DIM; d += 32) {
        uint32_t q[2][4];
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            const uint32_t row = 16 * warp + lane % 16;
            ldmatrix_x4(q[step], &shared.q[row][d + 16 * step + lane / 16 * 8]);
        }
#pragma unroll
        for (int tile = 0; tile < KEYS / 8; ++tile) {
            uint32_t k[4];
            ldmatrix_x4(k, &shared.k[8 * tile + lane % 8][d + lane / 8 * 8]);
            const uint32_t low[2] = {k[0], k[1]}, high[2] = {k[2], k[3]};
            mma_m16n8k16(scores[tile], q[0], low);
            mma_m16n8k16(scores[tile], q[1], high);
        }
    }
}

// Masks hidden keys, and sets the scores of keys with NaN values to NaN.
template <int DIM, int KEYS>
__device__ __forceinline__ void mask(float (&scores)[KEYS / 8][4], const PrefillShared<DIM, KEYS>& shared,
                                     const AttentionParams& p, const Prompt& prompt, uint32_t entry) {
    constexpr int ROWS = Share<DIM, KEYS>::ROWS;
    const Sequence& sequence = p.step.sequences[prompt.sequence];
    const uint32_t lane = threadIdx.x % WARP, t = lane % 4, first = threadIdx.x / WARP * 16 + lane / 4;
#pragma unroll
    for (int key = 0; key < KEYS; key += PAGE_TOKENS) {
        const uint32_t start = prompt.page(p.step, entry + key / PAGE_TOKENS).start;
        uint32_t poisoned = 0;
#pragma unroll
        for (int slot = 0; slot < PAGE_TOKENS; slot += ROWS) poisoned |= shared.poisoned[(key + slot) / ROWS] << slot;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const uint32_t position = min(prompt.oldest + first + 8 * row, prompt.newest);
            const uint32_t seen = seen_slots(sequence, p.window, position, start);
#pragma unroll
            for (int slot = 0; slot < PAGE_TOKENS; slot += 8) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& score = scores[(key + slot) / 8][2 * row + i];
                    const uint32_t bit = 1u << (slot + i) << 2 * t;
                    score = poisoned & bit ? NAN : score;
                    score = seen & bit ? score : -INFINITY;
                }
            }
        }
    }
}

// Turns a tile's scores into weights, and rescales the rows' sums and outputs to the new maximum.
template <int DIM, int KEYS>
__device__ __forceinline__ void weigh(Rows16<DIM>& rows, float (&scores)[KEYS / 8][4]) {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        float largest = rows.max[row];
#pragma unroll
        for (int tile = 0; tile < KEYS / 8; ++tile)
            largest = fmaxf(largest, fmaxf(scores[tile][2 * row], scores[tile][2 * row + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
        // A row that has seen no key yet has no maximum to subtract.
        const float base = largest == -INFINITY ? 0.0f : largest;
        const float correction = ex2_approx_ftz(rows.max[row] - base);
        rows.max[row] = largest;
        rows.sum[row] *= correction;
#pragma unroll
        for (int tile = 0; tile < KEYS / 8; ++tile) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& score = scores[tile][2 * row + i];
                score = ex2_approx_ftz(score - base);
                rows.sum[row] += score;
            }
        }
#pragma unroll
        for (int tile = 0; tile < DIM / 8; ++tile) {
            rows.out[tile][2 * row] *= correction;
            rows.out[tile][2 * row + 1] *= correction;
        }
    }
}

// Adds a tile's weighted values.
template <int DIM, int KEYS>
__device__ __forceinline__ void add_values(Rows16<DIM>& rows, const float (&weights)[KEYS / 8][4],
                                           const PrefillShared<DIM, KEYS>& shared) {
    const uint32_t lane = threadIdx.x % WARP;
#pragma unroll
    for (int key = 0; key < KEYS; key += 16) {
        const float(&first)[4] = weights[key / 8];
        const float(&second)[4] = weights[key / 8 + 1];
        const uint32_t packed[4] = {pack(first[0], first[1]), pack(first[2], first[3]),
                                    pack(second[0], second[1]), pack(second[2], second[3])};
#pragma unroll
        for (int d = 0; d < DIM; d += 16) {
            uint32_t v[4];
            ldmatrix_x4_trans(v, &shared.v[key + lane % 16][d + lane / 16 * 8]);
            const uint32_t low[2] = {v[0], v[1]}, high[2] = {v[2], v[3]};
            mma_m16n8k16(rows.out[d / 8], packed, low);
            mma_m16n8k16(rows.out[d / 8 + 1], packed, high);
        }
    }
}

// Loads the block's queries, scaled before the conversion because f16 has a smaller range than f32. Zeros
// after the end of the head and after the last row.
template <int DIM, int KEYS>
__device__ __forceinline__ void load_queries(PrefillShared<DIM, KEYS>& shared, const AttentionParams& p,
                                             const Prompt& prompt) {
    constexpr uint32_t FOURS = DIM / 4;
    const uint32_t dim = p.kv.head_dim, count = prompt.newest - prompt.oldest + 1;
    const float* from = p.inputs.q + prompt.first_element(p);
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < QUERIES * FOURS; i += 32 * PREFILL_WARPS) {
        const uint32_t row = i / FOURS, d = i % FOURS * 4;
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row < count && d < dim)
            x = *reinterpret_cast<const float4*>(from + row * p.inputs.query_heads * dim + d);
        __half2* to = reinterpret_cast<__half2*>(&shared.q[row][d]);
        to[0] = __halves2half2(saturated_half(x.x * p.scale), saturated_half(x.y * p.scale));
        to[1] = __halves2half2(saturated_half(x.z * p.scale), saturated_half(x.w * p.scale));
    }
}

// Divides by the sums of weights and stores the rows that exist.
template <int DIM>
__device__ __forceinline__ void store_rows(Rows16<DIM>& rows, const AttentionParams& p, const Prompt& prompt) {
    const uint32_t count = prompt.newest - prompt.oldest + 1;
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, dim = p.kv.head_dim;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        rows.sum[row] += __shfl_xor_sync(ALL_LANES, rows.sum[row], 1);
        rows.sum[row] += __shfl_xor_sync(ALL_LANES, rows.sum[row], 2);
        const uint32_t own = 16 * warp + lane / 4 + 8 * row;
        if (own >= count) continue;
        const float inverse = rows.sum[row] > 0.0f ? 1.0f / rows.sum[row] : 0.0f;
        float* dst = p.dst + prompt.first_element(p) + own * p.inputs.query_heads * dim;
#pragma unroll
        for (int i = 0; i < DIM / 8; ++i) {
            const uint32_t d = 8 * i + 2 * (lane % 4);
            const float2 pair = make_float2(rows.out[i][2 * row] * inverse, rows.out[i][2 * row + 1] * inverse);
            if (d < dim) *reinterpret_cast<float2*>(dst + d) = pair;
        }
    }
}

template <int DIM, int KEYS>
__device__ __forceinline__ void attention_prefill(const AttentionParams& p) {
    constexpr uint32_t PAGES = KEYS / PAGE_TOKENS;
    extern __shared__ __align__(16) uint8_t memory[];
    static_assert(sizeof(PrefillShared<DIM, KEYS>) <= (QUERIES + 2 * KEYS) * 2 * PREFILL_STRIDE<DIM> + PREFILL_BESIDE,
                  "what the host launches with");
    auto& shared = *reinterpret_cast<PrefillShared<DIM, KEYS>*>(memory);
    const uint32_t kv_head = blockIdx.x / (p.inputs.query_heads / p.kv.kv_heads);
    // The tables are written by the host; no kernel writes them.
    Prompt prompt;
    prompt.find(p, p.tiles[blockIdx.y]);
    // The loop reads it from shared memory, because scores and sums use all registers.
    if (threadIdx.x == 0) shared.prompt = prompt;
    uint32_t entry = prompt.seen.entry(0);
    wait_for_predecessor();
    copy_rows<DIM, KEYS>(shared.k, p, prompt, entry, 0, kv_head);
    load_queries(shared, p, prompt);

    Rows16<DIM> rows;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        rows.max[row] = -INFINITY;
        rows.sum[row] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < DIM / 8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) rows.out[i][j] = 0.0f;
    }
    for (const uint32_t end = prompt.seen.end; entry < end;) {
        cp_async_wait<0>();
        __syncthreads();
        const bool whole = shared.prompt.sees_all(p, entry, PAGES);
        copy_rows<DIM, KEYS>(shared.v, p, shared.prompt, entry, 1, kv_head);
        float scores[KEYS / 8][4] = {};
        multiply_keys(scores, shared);
        cp_async_wait<0>();
        if (!whole) mark_poisoned(shared);
        __syncthreads();
        const uint32_t next = shared.prompt.next(entry, PAGES);
        if (next < end) copy_rows<DIM, KEYS>(shared.k, p, shared.prompt, next, 0, kv_head);
        if (p.soft_cap > 0.0f) {
#pragma unroll
            for (int i = 0; i < KEYS / 2; ++i) scores[i / 4][i % 4] = capped(scores[i / 4][i % 4], p.soft_cap);
        }
        if (!whole) mask(scores, shared, p, shared.prompt, entry);
        weigh<DIM, KEYS>(rows, scores);
        add_values(rows, scores, shared);
        entry = next;
    }
    store_rows(rows, p, shared.prompt);
}

}  // namespace ottava

#define OTTAVA_ATTENTION_PREFILL(DIM, KEYS, BLOCKS)                                            \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS)                                \
        attention_prefill_##DIM(const __grid_constant__ ottava::AttentionParams p) {           \
        ottava::attention_prefill<DIM, KEYS>(p);                                               \
    }
// Maximum elements per head, keys per tile, and blocks per multiprocessor that registers allow.
OTTAVA_ATTENTION_PREFILL(64, 64, 4)
OTTAVA_ATTENTION_PREFILL(128, 64, 3)
OTTAVA_ATTENTION_PREFILL(256, 32, 2)
