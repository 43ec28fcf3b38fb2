#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <annulus/base/float16.hpp>
#include <type_traits>

#include "attention/gpu/problem.hpp"

namespace annulus::attention::hopper {

/// The driver's function that describes tensors to the copy engine; asked for at run time, so that programs
/// start without a driver.
inline PFN_cuTensorMapEncodeTiled_v12000 encode_tensor_map() {
  static const auto function = [] {
    void* address = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &address, 12000,
                                                               cudaEnableDefault, &found);
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess
               ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(address)
               : nullptr;
  }();
  return function;
}

/// Describes (batch, heads, rows, columns) to the copy engine, which brings boxes of `box_rows` rows × 64
/// columns with the 128-byte swizzle. Rows start at multiples of 16 bytes.
template <class T>
cudaError_t make_tensor_map(CUtensorMap& map, const gpu::Rows<const T>& tensor, int batch, int heads,
                            std::int64_t rows, int columns, int box_rows) {
  const auto encode = encode_tensor_map();
  if (encode == nullptr) return cudaErrorInsufficientDriver;
  // A dimension of one element is never stepped over: its stride may be anything, and the engine wants a
  // multiple of 16.
  const auto stride = [](int extent, std::int64_t elements) {
    return static_cast<cuuint64_t>(extent > 1 ? elements * 2 : 16);
  };
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                                static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(batch)};
  const cuuint64_t strides[] = {stride(rows > 1 ? 2 : 1, tensor.row_stride),
                                stride(heads, tensor.head_stride), stride(batch, tensor.batch_stride)};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows), 1, 1}, steps[] = {1, 1, 1, 1};
  const CUresult result = encode(
      &map, std::is_same_v<T, bfloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      4, const_cast<T*>(tensor.data), extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace annulus::attention::hopper
