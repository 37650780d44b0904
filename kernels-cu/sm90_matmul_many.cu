// dst = epilogue(x · matrixᵀ) for many tokens on cards of compute capability 9.0: matmul_many.cu with wgmma
// and bulk copies.
//
// A block computes tiles of 8 · STRIPS strips of 16 rows by TOKENS tokens, one after another. Warps 0 to 7,
// two warpgroups, multiply. Each of them has STRIPS strips, whose weights it converts to scaled f16 in
// registers, the operand A, while the tensor cores process the previous step. A gated product's two strips
// are the same rows of its two matrices. Warps 8 to 11 have given registers to the others. They keep a ring
// in shared memory filled, across tiles, with the activations, codes, scales and minimums of each unit of
// columns. Scales are in the operand, so sums stay in wgmma's accumulators from the first column to the last,
// in an order that is the same for all tiles.
//
// Activations are slabs of 64 columns: [half_cols / 64][tokens in whole blocks][64], 128 bytes per token,
// with pieces of 16 bytes swizzled by the token (`activations` writes them). So a block's part of a slab is
// one copy, and has wgmma's 128-byte swizzle in shared memory.
//
// Launch: one block per multiprocessor, 384 threads, dynamic shared memory of `sizeof(Shared)` plus 1024
// bytes for alignment.

#include "common/matmul.cuh"

// Neither older nor newer cards have these instructions.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace ottava {

constexpr uint32_t MULTIPLIERS = 8, FILLERS = 4;
constexpr int SLAB_STEPS = SLAB_COLS / STEP_COLS;
constexpr uint32_t SCALES = STRIP_ROWS / 2;

// A slot of the ring: two slabs and 2 KB of codes per strip, which is one slab for f16 weights.
template <int STRIPS, int TOKENS>
struct Slot {
    __half activations[2][TOKENS * SLAB_COLS];
    uint4 codes[MULTIPLIERS * STRIPS][4][WARP];
    __half2 scales[MULTIPLIERS * STRIPS][UNIT_STEPS][SCALES];
    __half2 mins[MULTIPLIERS * STRIPS][UNIT_STEPS][SCALES];
};

__device__ __forceinline__ constexpr uint32_t unit_slabs(uint32_t bits) { return bits == 16 ? 1 : 2; }

template <int STRIPS_, int TOKENS_>
struct Shared {
    static constexpr int STRIPS = STRIPS_, TOKENS = TOKENS_;
    static constexpr uint32_t BLOCK_STRIPS = MULTIPLIERS * STRIPS;
    // Sums of a lane per strip.
    static constexpr int SUMS = TOKENS / 2;
    using Slot = ottava::Slot<STRIPS, TOKENS>;
    static_assert(sizeof(Slot) % 1024 == 0, "swizzled slabs are aligned");
    // All slots that fit in shared memory.
    static constexpr uint32_t SLOTS = 226 * 1024 / sizeof(Slot);

    Slot slots[SLOTS];
    uint64_t full[SLOTS];   // arrivals of the copying lanes, and their bytes
    uint64_t empty[SLOTS];  // arrivals of the multiplying warps
    __half2 none[SCALES];   // zeros, for matrices without minimums
};
static_assert(sizeof(Shared<1, 64>) == 221312 && sizeof(Shared<1, 128>) == 213088 &&
                  sizeof(Shared<2, 64>) == 229472 && sizeof(Shared<2, 128>) == 221264,
              "as in sm90_matmul.rs");

// The next slot, and the parity of its round.
template <uint32_t SLOTS>
struct Turn {
    uint32_t slot = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++slot < SLOTS) return;
        slot = 0;
        parity ^= 1;
    }
};

__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
    while (!mbarrier_try_wait(barrier, parity)) {
    }
}

struct Sm90Tile {
    const Product* product;
    bool gated;
    uint32_t strip, token;  // first strip and first token

    // Tiles of a row block are consecutive, so its weights are read from memory once.
    template <class Shared>
    static __device__ __forceinline__ Sm90Tile at(const MatmulParams& p, uint32_t index) {
        const uint32_t token_blocks = (p.tokens + Shared::TOKENS - 1) / Shared::TOKENS;
        const uint32_t block = index / token_blocks;
        const Product& product = product_of(p, block);
        const bool gated = product.epilogue == Epilogue::Gated;
        const uint32_t strips = gated ? Shared::BLOCK_STRIPS / 2 : Shared::BLOCK_STRIPS;
        return {&product, gated, (block - product.first_block) * strips, index % token_blocks * Shared::TOKENS};
    }

    __device__ __forceinline__ uint32_t slabs() const {
        return (product->matrix.cols + SLAB_COLS - 1) / SLAB_COLS;
    }
    // The matrix of a slot's strip, and the strip's index in it.
    __device__ __forceinline__ const Matrix& matrix(uint32_t own) const {
        return gated && own % 2 ? product->up : product->matrix;
    }
    __device__ __forceinline__ uint32_t strip_of(uint32_t own) const { return strip + (gated ? own / 2 : own); }
};

// Starts the copies of a strip's codes and scales, from slab `slab` on.
template <class Slot>
__device__ __forceinline__ void copy_strip(Slot& slot, uint64_t* full, const Sm90Tile& tile, uint32_t own,
                                           uint32_t slab) {
    const Matrix& m = tile.matrix(own);
    // After the last strip, that one is computed again and its result discarded.
    const size_t strip = min(tile.strip_of(own), (m.rows + STRIP_ROWS - 1) / STRIP_ROWS - 1);
    const uint32_t loads = row_loads(m.cols, m.bits), first = slab * SLAB_STEPS * m.bits / 16;
    const uint32_t bytes = min(unit_slabs(m.bits) * SLAB_STEPS * m.bits / 16, loads - first) * LOAD_BYTES;
    // Rows with one scale use it in every unit.
    const uint32_t shift = __ffs(m.group_steps) - 1, group = m.groups == 1 ? 0 : slab * SLAB_STEPS >> shift;
    const uint32_t scale_bytes = min(UNIT_STEPS >> shift, m.groups - group) * SCALES * sizeof(__half2);
    const size_t scale = (strip * m.groups + group) * SCALES;
    mbarrier_arrive_expect_tx(full, bytes + (m.mins ? 2 : 1) * scale_bytes);
    bulk_copy(slot.codes[own], m.codes + (strip * loads + first) * WARP, bytes, full);
    bulk_copy(slot.scales[own], m.scales + scale, scale_bytes, full);
    if (m.mins) bulk_copy(slot.mins[own], m.mins + scale, scale_bytes, full);
}

// Starts the copy of a block's part of a slab, if the slab exists.
template <int HALVES>
__device__ __forceinline__ void copy_slab(__half (&to)[HALVES], uint64_t* full, const MatmulParams& p,
                                          const Sm90Tile& tile, uint32_t slab) {
    if (slab >= tile.slabs()) {
        mbarrier_arrive(full);
        return;
    }
    mbarrier_arrive_expect_tx(full, sizeof(to));
    bulk_copy(to, p.halves + (slab * slab_tokens(p.tokens) + tile.token) * SLAB_COLS, sizeof(to), full);
}

// Fills the ring, with four warps, one per scheduler: a copy occupies only its own lane. Each lane copies a
// strip, or one of the two slabs.
template <class Shared>
__device__ __forceinline__ void fill(const MatmulParams& p, Shared& shared, uint32_t tiles) {
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP - MULTIPLIERS;
    Turn<Shared::SLOTS> turn;
    bool waited = false;
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Sm90Tile tile = Sm90Tile::at<Shared>(p, index);
        const uint32_t slabs = tile.slabs(), step = unit_slabs(tile.product->matrix.bits);
        for (uint32_t slab = 0; slab < slabs; slab += step) {
            auto& slot = shared.slots[turn.slot];
            uint64_t* full = &shared.full[turn.slot];
            wait(&shared.empty[turn.slot], turn.parity ^ 1);
            if (lane < Shared::BLOCK_STRIPS / FILLERS) copy_strip(slot, full, tile, lane * FILLERS + warp, slab);
            // Weights do not depend on earlier kernels, so the first ones are loaded before activations are
            // available.
            if (!waited) wait_for_predecessor();
            waited = true;
            if (lane == Shared::BLOCK_STRIPS / FILLERS && warp < 2)
                copy_slab(slot.activations[warp], full, p, tile, warp < step ? slab + warp : slabs);
            turn.next();
        }
    }
}

// Descriptor of a slab in shared memory as operand B of its first step: rows of 128 bytes, 1024 bytes between
// groups of 8, 128-byte swizzle. Each further step adds 32 bytes.
__device__ __forceinline__ uint64_t operand_b(const __half* slab) {
    return uint64_t(1) << 62 | uint64_t(1024 / 16) << 32 | 1 << 16 | (shared_address(slab) / 16 & 0x3fff);
}
constexpr uint64_t NEXT_STEP = 32 / 16;

// A warp's strip in a slot.
template <int BITS>
struct OwnStrip {
    uint32_t own;
    // Read once per tile; otherwise the compiler reloads the parameters for every slab.
    enum { ZERO, SHIFT, GROUP_LAST, LOAD_LAST, HAS_MINS, COUNT };
    uint32_t of_matrix[COUNT];

    __device__ __forceinline__ OwnStrip(const Sm90Tile& tile, uint32_t own)
        : OwnStrip(tile.matrix(own), own) {}
    __device__ __forceinline__ OwnStrip(const Matrix& m, uint32_t own)
        : own(own), of_matrix{m.zero, static_cast<uint32_t>(__ffs(m.group_steps) - 1), m.groups - 1,
                              row_loads(m.cols, BITS) - 1, m.mins != nullptr} {
        keep_order(of_matrix);
    }

    // The codes of slab `slab`, the `which`-th of the slot. After the row's end the last ones are repeated:
    // activations are zero there.
    template <class Slot>
    __device__ __forceinline__ Codes<BITS, SLAB_STEPS> codes(const Slot& slot, uint32_t slab,
                                                             uint32_t which) const {
        Codes<BITS, SLAB_STEPS> codes;
#pragma unroll
        for (uint32_t i = 0; i < codes.LOADS; ++i) {
            const uint32_t load = min(i, of_matrix[LOAD_LAST] - slab * codes.LOADS);
            codes.loads[i] = slot.codes[own][which * codes.LOADS + load][threadIdx.x % WARP];
        }
        return codes;
    }

    // The operand A of step `step` in a slot that begins with step `first`; after the row's end the last
    // scale is used.
    template <class Slot>
    __device__ __forceinline__ void operand(uint32_t (&a)[4], const Slot& slot, const __half2* none,
                                            const Codes<BITS, SLAB_STEPS>& codes, uint32_t step,
                                            uint32_t first) const {
        // If a row has one scale, the first term is zero, whatever the second is.
        const uint32_t group = min(step >> of_matrix[SHIFT], of_matrix[GROUP_LAST] - (first >> of_matrix[SHIFT]));
        const uint32_t g = threadIdx.x % WARP / 4;
        const __half2* mins = of_matrix[HAS_MINS] ? slot.mins[own][group] : none;
        scaled_operand(a, codes, step % SLAB_STEPS, of_matrix[ZERO], slot.scales[own][group][g], mins[g]);
    }
};

// Releases a slot for the warp, if `done` is true.
__device__ __forceinline__ void release(bool done, uint64_t* empty) {
    __syncwarp();
    mbarrier_arrive_if(done && threadIdx.x % WARP == 0, empty);
}

// Computes a warp's sums of a tile from the ring.
template <int BITS, class Shared>
__device__ __forceinline__ void multiply(float (&sums)[Shared::STRIPS][Shared::SUMS], const Sm90Tile& tile,
                                         Shared& shared, Turn<Shared::SLOTS>& turn) {
    constexpr int STRIPS = Shared::STRIPS;
    const uint32_t own = threadIdx.x / WARP * STRIPS, slabs = tile.slabs();
    const OwnStrip<BITS> strips[2] = {{tile, own}, {tile, own + STRIPS - 1}};
    uint32_t a[2][STRIPS][4], before = 0;
    for (uint32_t first = 0; first < slabs; first += unit_slabs(BITS)) {
        const auto& slot = shared.slots[turn.slot];
        wait(&shared.full[turn.slot], turn.parity);
        for (uint32_t slab = first; slab < min(first + unit_slabs(BITS), slabs); ++slab) {
            Codes<BITS, SLAB_STEPS> codes[STRIPS];
#pragma unroll
            for (int i = 0; i < STRIPS; ++i) codes[i] = strips[i].codes(slot, slab, slab - first);
            const uint64_t b = operand_b(slot.activations[slab - first]);
#pragma unroll
            for (uint32_t step = 0; step < SLAB_STEPS; ++step) {
                // The tensor cores have the previous step, and no longer use these registers.
#pragma unroll
                for (int i = 0; i < STRIPS; ++i) {
                    strips[i].operand(a[step % 2][i], slot, shared.none, codes[i],
                                      (slab - first) * SLAB_STEPS + step, first * SLAB_STEPS);
                    keep_order(a[step % 2][i]);
                }
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < STRIPS; ++i) {
                    if constexpr (Shared::TOKENS == 128)
                        wgmma_m64n128k16(sums[i], a[step % 2][i], b + step * NEXT_STEP);
                    else
                        wgmma_m64n64k16(sums[i], a[step % 2][i], b + step * NEXT_STEP);
                }
                wgmma_commit();
                wgmma_wait<1>();
                if (step == 0) release(slab == first && first > 0, &shared.empty[before]);
            }
        }
        before = turn.slot;
        turn.next();
    }
    wgmma_wait<0>();
    release(true, &shared.empty[before]);
}

// Writes a warp's part of a tile. Registers cannot be indexed at run time, so the remaining sums are shifted
// to the front after each batch. Unrolled, this loop would exceed every instruction cache.
template <Epilogue EPILOGUE, int STRIPS, int SUMS>
__device__ __forceinline__ void store(const MatmulParams& p, const Sm90Tile& tile, float (&sums)[STRIPS][SUMS]) {
    // A gate's second strip is the other matrix of the first.
    constexpr int STORED = EPILOGUE == Epilogue::Gated ? 1 : STRIPS, BATCH = 8;
    const Product& product = *tile.product;
    const uint32_t lane = threadIdx.x % WARP, t = lane % 4, rows = product.matrix.rows;
    const uint32_t row = tile.strip_of(threadIdx.x / WARP * STRIPS) * STRIP_ROWS + lane / 4;
    float bias[STORED][2];
#pragma unroll
    for (int i = 0; i < 2 * STORED; ++i)
        bias[i / 2][i % 2] = product.bias && row + 8 * i < rows ? product.bias[row + 8 * i] : 0.0f;
#pragma unroll 1
    for (uint32_t first = tile.token + 2 * t; first < tile.token + 2 * SUMS; first += 2 * BATCH) {
        float* const at = product.dst + static_cast<size_t>(first) * rows + row;
        float before[STORED][BATCH], inverse[BATCH];
        // All reads of a batch come first, so that none waits for a write.
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const uint32_t token = i / 4 * 8 + i % 2, down = i / 2 % 2 * 8;
            inverse[i] = first + token < p.tokens ? p.inverse[first + token] : 0.0f;
#pragma unroll
            for (uint32_t strip = 0; strip < STORED; ++strip) {
                const uint32_t below = strip * STRIP_ROWS + down;
                const bool inside = first + token < p.tokens && row + below < rows;
                before[strip][i] =
                    reads_dst(EPILOGUE) && inside ? at[static_cast<size_t>(token) * rows + below] : 0.0f;
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const uint32_t token = i / 4 * 8 + i % 2, down = i / 2 % 2 * 8;
#pragma unroll
            for (uint32_t strip = 0; strip < STORED; ++strip) {
                const uint32_t below = strip * STRIP_ROWS + down;
                const float y = fmaf(sums[strip][i], inverse[i], bias[strip][down / 8]);
                const float up = sums[STRIPS - 1][i] * inverse[i];
                const float value = finished<EPILOGUE>(product.activation, y, before[strip][i], up);
                if (first + token < p.tokens && row + below < rows)
                    at[static_cast<size_t>(token) * rows + below] = value;
            }
        }
#pragma unroll
        for (int i = 0; i < STRIPS * (SUMS - BATCH); ++i)
            sums[i / (SUMS - BATCH)][i % (SUMS - BATCH)] = sums[i / (SUMS - BATCH)][i % (SUMS - BATCH) + BATCH];
    }
}

template <class Shared>
__device__ __forceinline__ void multiply_all(const MatmulParams& p, Shared& shared, uint32_t tiles) {
    Turn<Shared::SLOTS> turn;
    wait_for_predecessor();
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Sm90Tile tile = Sm90Tile::at<Shared>(p, index);
        float sums[Shared::STRIPS][Shared::SUMS] = {};
#pragma unroll
        for (int i = 0; i < Shared::STRIPS; ++i) keep_order(sums[i]);
        switch (tile.product->matrix.bits) {
            case 4: multiply<4>(sums, tile, shared, turn); break;
            case 8: multiply<8>(sums, tile, shared, turn); break;
            case 16: multiply<16>(sums, tile, shared, turn); break;
        }
#pragma unroll
        for (int i = 0; i < Shared::STRIPS; ++i) keep_order(sums[i]);
        switch (tile.product->epilogue) {
            case Epilogue::Store: store<Epilogue::Store>(p, tile, sums); break;
            case Epilogue::Add: store<Epilogue::Add>(p, tile, sums); break;
            case Epilogue::Multiply: store<Epilogue::Multiply>(p, tile, sums); break;
            case Epilogue::Gated:
                // The host launches gates with two strips per warp.
                if constexpr (Shared::STRIPS == 2) store<Epilogue::Gated>(p, tile, sums);
                break;
        }
    }
}

template <class Shared>
__device__ __forceinline__ void sm90_matmul_many(const MatmulParams& p) {
    // Aligned by hand; an attribute would align the shared memory of every kernel.
    extern __shared__ __align__(16) unsigned char sm90_shared[];
    Shared& shared = *reinterpret_cast<Shared*>(sm90_shared + (-shared_address(sm90_shared) & 1023));
    const uint32_t tiles = p.row_blocks * ((p.tokens + Shared::TOKENS - 1) / Shared::TOKENS);
    if (threadIdx.x == 0) {
        for (uint32_t slot = 0; slot < Shared::SLOTS; ++slot) {
            mbarrier_init(&shared.full[slot], Shared::BLOCK_STRIPS + 2);
            mbarrier_init(&shared.empty[slot], MULTIPLIERS);
        }
        fence_mbarrier_init();
    }
    if (threadIdx.x < SCALES) shared.none[threadIdx.x] = __float2half2_rn(0.0f);
    __syncthreads();
    // A thread starts with 168 registers. A third of the threads release the ones that the others need.
    if (threadIdx.x / WARP >= MULTIPLIERS) {
        setmaxnreg_dec<40>();
        fill(p, shared, tiles);
    } else {
        setmaxnreg_inc<232>();
        multiply_all(p, shared, tiles);
    }
}

}  // namespace ottava

#define OTTAVA_SM90_MATMUL_MANY(ROWS, TOKENS)                                                 \
    extern "C" __global__ void __launch_bounds__(384, 1)                                      \
        sm90_matmul_many_##ROWS##_##TOKENS(const __grid_constant__ ottava::MatmulParams p) {  \
        ottava::sm90_matmul_many<ottava::Shared<ROWS / 128, TOKENS>>(p);                      \
    }
// Rows and tokens per tile.
OTTAVA_SM90_MATMUL_MANY(128, 64)
OTTAVA_SM90_MATMUL_MANY(128, 128)
OTTAVA_SM90_MATMUL_MANY(256, 64)
OTTAVA_SM90_MATMUL_MANY(256, 128)

#endif
