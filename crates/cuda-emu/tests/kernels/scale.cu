// The kernel of the README's example.

extern "C" __global__ void scale(float *x, float factor, unsigned count) {
    unsigned n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n < count)
        x[n] *= factor;
}
