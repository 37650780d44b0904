// Attention of prompts over pages: flash attention (Dao 2023) on mma.m16n8k16. A block takes
// QUERIES rows of one sequence and query head, a warp 16 of them; keys and values pass through shared
// memory as f16, KEYS at a time, whatever the pages hold. Scores, sums and outputs are f32.
//
// Launch: grid [tiles, query heads], 128 threads; tiles come from the host and cover the sequences
// of more than one row (attention_decode.cu takes the others).

#include "common/attention.cuh"

namespace ottava {

constexpr int PREFILL_WARPS = 4;
constexpr int QUERIES = 16 * PREFILL_WARPS;

// Elements between rows in shared memory: 16 bytes more than a row, so that the eight rows of a
// matrix that ldmatrix reads lie in different banks.
template <int DIM>
constexpr int PREFILL_STRIDE = DIM + 8;

template <int DIM, int KEYS>
struct PrefillShared {
    __half q[QUERIES][PREFILL_STRIDE<DIM>];
    __half k[KEYS][PREFILL_STRIDE<DIM>];
    __half v[KEYS][PREFILL_STRIDE<DIM>];
    uint32_t positions[KEYS];
    // Keys whose value is no number, a bit each; two sets, for the tile at hand and the next.
    uint32_t poisoned[2][KEYS / 32];
};

// Two f16 as one operand.
__device__ __forceinline__ uint32_t pack(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

// Eight elements of a page as f16.
__device__ __forceinline__ uint4 page_halves(const KvLayer& kv, uint32_t page, int which, uint32_t head,
                                             uint32_t slot, uint32_t first) {
    const size_t at = slot * kv.head_dim + first;
    if (kv.dtype == KvDtype::F16)
        return *reinterpret_cast<const uint4*>(page_elements<__half>(kv, page, which, head) + at);
    const __half scale =
        page_scales(kv, page, which, head)[slot * kv.scale_groups + first / KV_SCALE_GROUP];
    const uint2 codes = *reinterpret_cast<const uint2*>(page_elements<int8_t>(kv, page, which, head) + at);
    const uint32_t words[2] = {codes.x, codes.y};
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t pair = words[i / 2] >> 16 * (i % 2);
        const float s = __half2float(scale);
        const __half2 values = __halves2half2(saturated_half(static_cast<int8_t>(pair) * s),
                                              saturated_half(static_cast<int8_t>(pair >> 8) * s));
        out[i] = *reinterpret_cast<const uint32_t*>(&values);
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

// Takes what is no number out of eight f16, and tells whether there was any.
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

// The keys and values of KEYS / 16 pages from `entry` on; zeros beyond `last`, the newest position
// that any row sees: what lies there was never written. A weight of zero does not keep a value that is
// no number from a sum, so such values become zeros, and their keys are marked in `poisoned`.
template <int DIM, int KEYS>
__device__ __forceinline__ void load_keys(PrefillShared<DIM, KEYS>& shared, const AttentionParams& p,
                                          const Sequence& sequence, uint32_t entry, uint32_t kv_head,
                                          uint32_t last, uint32_t* poisoned) {
    constexpr uint32_t CHUNKS = DIM / 8;
    for (uint32_t i = threadIdx.x; i < KEYS * CHUNKS; i += blockDim.x) {
        const uint32_t key = i / CHUNKS, first = i % CHUNKS * 8, index = entry + key / PAGE_TOKENS;
        const PageRef page = index < sequence.pages_end ? p.step.pages[index] : PageRef{0, UINT32_MAX};
        const uint32_t slot = key % PAGE_TOKENS;
        const bool there = page.start <= last && page.start + slot <= last;
        if (first == 0) shared.positions[key] = there ? page.start + slot : UINT32_MAX;
        uint4 k = make_uint4(0, 0, 0, 0), v = k;
        if (there && first < p.kv.head_dim) {
            k = page_halves(p.kv, page.page, 0, kv_head, slot, first);
            v = page_halves(p.kv, page.page, 1, kv_head, slot, first);
            if (take_nan(v)) atomicOr(&poisoned[key / 32], 1u << key % 32);
        }
        *reinterpret_cast<uint4*>(&shared.k[key][first]) = k;
        *reinterpret_cast<uint4*>(&shared.v[key][first]) = v;
    }
}

// A warp's 16 rows: lane (g, t) has rows g and g + 8, and of every 8 columns 2t and 2t + 1.
template <int DIM>
struct Rows16 {
    float max[2], sum[2], out[DIM / 8][4];
};

template <int DIM, int KEYS>
__device__ __forceinline__ void take_tile(Rows16<DIM>& rows, const PrefillShared<DIM, KEYS>& shared,
                                          const AttentionParams& p, const Sequence& sequence,
                                          const uint32_t (&positions)[2], const uint32_t* poisoned) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, t = lane % 4;
    float scores[KEYS / 8][4] = {};
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
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        float largest = rows.max[row];
#pragma unroll
        for (int tile = 0; tile < KEYS / 8; ++tile) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint32_t key = shared.positions[8 * tile + 2 * t + i];
                float& score = scores[tile][2 * row + i];
                score = sees(sequence, p.window, positions[row], key) ? score_of(p, score) : -INFINITY;
                if (poisoned[tile / 4] >> (8 * tile + 2 * t + i) % 32 & 1 && score != -INFINITY) score = NAN;
                largest = fmaxf(largest, score);
            }
        }
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
        // A row that has seen nothing yet has no maximum to subtract.
        const float base = largest == -INFINITY ? 0.0f : largest;
        const float correction = exp2f(rows.max[row] - base);
        rows.max[row] = largest;
        rows.sum[row] *= correction;
#pragma unroll
        for (int tile = 0; tile < KEYS / 8; ++tile) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                float& score = scores[tile][2 * row + i];
                score = exp2f(score - base);
                rows.sum[row] += score;
            }
        }
#pragma unroll
        for (int tile = 0; tile < DIM / 8; ++tile) {
            rows.out[tile][2 * row] *= correction;
            rows.out[tile][2 * row + 1] *= correction;
        }
    }
#pragma unroll
    for (int key = 0; key < KEYS; key += 16) {
        const float(&first)[4] = scores[key / 8];
        const float(&second)[4] = scores[key / 8 + 1];
        const uint32_t weights[4] = {pack(first[0], first[1]), pack(first[2], first[3]),
                                     pack(second[0], second[1]), pack(second[2], second[3])};
#pragma unroll
        for (int d = 0; d < DIM; d += 16) {
            uint32_t v[4];
            ldmatrix_x4_trans(v, &shared.v[key + lane % 16][d + lane / 16 * 8]);
            const uint32_t low[2] = {v[0], v[1]}, high[2] = {v[2], v[3]};
            mma_m16n8k16(rows.out[d / 8], weights, low);
            mma_m16n8k16(rows.out[d / 8 + 1], weights, high);
        }
    }
}

template <int DIM, int KEYS>
__device__ __forceinline__ void attention_prefill(const AttentionParams& p) {
    extern __shared__ __align__(16) uint8_t memory[];
    auto& shared = *reinterpret_cast<PrefillShared<DIM, KEYS>*>(memory);
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, g = lane / 4, t = lane % 4;
    const uint32_t head = blockIdx.y, kv_head = head / (p.inputs.query_heads / p.kv.kv_heads), dim = p.kv.head_dim;
    wait_for_predecessor();
    const uint2 tile = p.tiles[blockIdx.x];
    const Sequence sequence = p.step.sequences[tile.x];
    const uint32_t first_row = sequence.rows_start + tile.y;
    const uint32_t count = min(static_cast<uint32_t>(QUERIES), sequence.rows_end - first_row);

    for (uint32_t i = threadIdx.x; i < QUERIES * DIM; i += blockDim.x) {
        const uint32_t row = i / DIM, d = i % DIM;
        float x = 0.0f;
        if (row < count && d < dim)
            x = p.inputs.q[(static_cast<size_t>(first_row + row) * p.inputs.query_heads + head) * dim + d];
        // Scaled first: f16 holds less than f32.
        shared.q[row][d] = saturated_half(x * p.scale);
    }
    uint32_t positions[2];
#pragma unroll
    for (int row = 0; row < 2; ++row)
        positions[row] = p.step.positions[first_row + min(16 * warp + g + 8 * row, count - 1)];
    const uint32_t oldest = p.step.positions[first_row], newest = p.step.positions[first_row + count - 1];

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
    if (threadIdx.x < KEYS / 32) shared.poisoned[0][threadIdx.x] = 0;
    uint32_t* poisoned = shared.poisoned[0];
    for (uint32_t entry = sequence.pages_start; entry < sequence.pages_end; entry += KEYS / PAGE_TOKENS) {
        const uint32_t start = p.step.pages[entry].start;
        if (start > newest) break;
        // Keys that no row sees any more are not read.
        const uint32_t last_entry = min(entry + KEYS / PAGE_TOKENS, sequence.pages_end) - 1;
        const uint32_t end = p.step.pages[last_entry].start + PAGE_TOKENS - 1;
        const uint32_t age = end < oldest ? oldest - end : 0;
        if (age >= p.window || (age >= sequence.window && start >= sequence.sinks)) continue;
        uint32_t* next = poisoned == shared.poisoned[0] ? shared.poisoned[1] : shared.poisoned[0];
        __syncthreads();
        if (threadIdx.x < KEYS / 32) next[threadIdx.x] = 0;
        load_keys<DIM, KEYS>(shared, p, sequence, entry, kv_head, newest, poisoned);
        __syncthreads();
        take_tile<DIM, KEYS>(rows, shared, p, sequence, positions, poisoned);
        poisoned = next;
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        rows.sum[row] += __shfl_xor_sync(ALL_LANES, rows.sum[row], 1);
        rows.sum[row] += __shfl_xor_sync(ALL_LANES, rows.sum[row], 2);
        const uint32_t own = 16 * warp + g + 8 * row;
        if (own >= count) continue;
        const float inverse = rows.sum[row] > 0.0f ? 1.0f / rows.sum[row] : 0.0f;
        float* dst = p.dst + (static_cast<size_t>(first_row + own) * p.inputs.query_heads + head) * dim;
#pragma unroll
        for (int i = 0; i < DIM / 8; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const uint32_t d = 8 * i + 2 * t + j;
                if (d < dim) dst[d] = rows.out[i][2 * row + j] * inverse;
            }
        }
    }
}

}  // namespace ottava

#define OTTAVA_ATTENTION_PREFILL(DIM, KEYS)                                                    \
    extern "C" __global__ void __launch_bounds__(128)                                          \
        attention_prefill_##DIM(const __grid_constant__ ottava::AttentionParams p) {           \
        ottava::attention_prefill<DIM, KEYS>(p);                                               \
    }
// Heads of at most that many elements, keys at a time.
OTTAVA_ATTENTION_PREFILL(64, 64)
OTTAVA_ATTENTION_PREFILL(128, 64)
OTTAVA_ATTENTION_PREFILL(256, 32)
