#pragma once

/// The two matrix products that the host kernels are made of, on packed tiles. Lanes are `vectors` whole
/// vectors, 1 to block_vectors; `rows` is a multiple of block_rows.
namespace annulus::attention::host_simd {

/// out(r, lane) = Σ_k a(r, k) · b(k, lane), with a(r, k) = a[r·a_stride + k], b(k, lane) = b[k·b_stride +
/// lane].
void multiply(int rows, int vectors, int depth, const float* a, int a_stride, const float* b, int b_stride,
              float* out, int out_stride);

/// out(r, lane) = factor(lane) · out(r, lane) + Σ_k a(k, r) · b(k, lane), with a(k, r) = a[k·a_stride + r];
/// factor null means 1.
void accumulate(int rows, int vectors, int depth, const float* a, int a_stride, const float* b, int b_stride,
                const float* factor, float* out, int out_stride);

}  // namespace annulus::attention::host_simd
