#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <annulus/base/dtype.hpp>
#include <initializer_list>
#include <type_traits>

#include "attention/kernels/gpu/problem.hpp"
#include "attention/kernels/hopper/ptx/instructions.hpp"

namespace annulus::attention::hopper {

/// The driver's function that describes tensors to TMA; asked for at run time, so that programs start without
/// a driver.
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

/// The rows of one dilation class for TMA, which moves boxes of 128 bytes of columns × some rows with the
/// 128-byte swizzle.
struct ClassMap {
  const CUtensorMap& map;
  int in_map;  ///< the class

  __device__ __forceinline__ void load(std::uint32_t to, std::uint32_t barrier, int column, int row, int head,
                                       int batch) const {
    load_box(to, map, barrier, column, in_map, row, head, batch);
  }
  __device__ __forceinline__ void store(std::uint32_t from, int column, int row, int head, int batch) const {
    store_box(from, map, column, in_map, row, head, batch);
  }
  __device__ __forceinline__ void add(std::uint32_t from, int column, int row, int head, int batch) const {
    add_box(from, map, column, in_map, row, head, batch);
  }
};

/// A tensor for TMA. The first (rows mod classes) classes have one row more than the others, so
/// that no one map fits all without reaching behind the end.
struct RowMaps {
  CUtensorMap longer, shorter;
  int longer_classes;

  __device__ __forceinline__ void prefetch() const {
    if (longer_classes > 0) prefetch_tensor_map(longer);
    prefetch_tensor_map(shorter);
  }
  /// One of the two maps is chosen: issuing a box with either, under predicates, doubles the instructions of
  /// a producer thread, and the forward pass of fine block lists takes 8 % longer.
  __device__ __forceinline__ ClassMap of_class(int dilation_class) const {
    const bool in_longer = dilation_class < longer_classes;
    return {in_longer ? longer : shorter, in_longer ? dilation_class : dilation_class - longer_classes};
  }
  /// Calls action(the map of the class) in a branch for each map. The backward pass of head dimension 64 is 2
  /// % faster when it brings queries so; at 128 both are level.
  template <class Action>
  __device__ __forceinline__ void with_class(int dilation_class, const Action& action) const {
    if (dilation_class < longer_classes) {
      action(ClassMap{longer, dilation_class});
    } else {
      action(ClassMap{shorter, dilation_class - longer_classes});
    }
  }
};

/// The start of every kernel: thread 0 fetches tensor maps and initialises the barriers of shared memory.
template <class Memory>
__device__ __forceinline__ void start_block(const Memory& memory,
                                            std::initializer_list<const RowMaps*> maps) {
  if (threadIdx.x == 0) {
    for (const RowMaps* map : maps) map->prefetch();
    memory.init();
  }
  __syncthreads();
}

template <class T>
inline constexpr CUtensorMapDataType tensor_map_type =
    std::is_same_v<T, float>      ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
    : std::is_same_v<T, bfloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                  : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;

/// Describes (batch, heads, classes, rows, columns) to TMA. Rows start at multiples of 16 bytes.
template <class T>
cudaError_t make_tensor_map(CUtensorMap& map, const gpu::Rows<T>& tensor, std::int64_t first_class,
                            int classes, std::int64_t of_classes, std::int64_t rows, int batch, int heads,
                            int columns, int box_rows) {
  const auto encode = encode_tensor_map();
  if (encode == nullptr) return cudaErrorInsufficientDriver;
  // A dimension of one element is never stepped over: its stride may be anything, and TMA wants a
  // multiple of 16.
  constexpr std::int64_t bytes = sizeof(T);
  const auto stride = [](std::int64_t extent, std::int64_t elements) {
    return static_cast<cuuint64_t>(extent > 1 ? elements * bytes : 16);
  };
  const cuuint64_t extents[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                                static_cast<cuuint64_t>(classes), static_cast<cuuint64_t>(heads),
                                static_cast<cuuint64_t>(batch)};
  // Rows stand behind columns: with classes between them the backward pass lost a sixth of its speed.
  const cuuint64_t strides[] = {stride(rows, of_classes * tensor.row_stride),
                                stride(classes, tensor.row_stride), stride(heads, tensor.head_stride),
                                stride(batch, tensor.batch_stride)};
  const cuuint32_t box[] = {128 / bytes, static_cast<cuuint32_t>(box_rows), 1, 1, 1},
                   steps[] = {1, 1, 1, 1, 1};
  const CUresult result =
      encode(&map, tensor_map_type<std::remove_const_t<T>>, 5,
             const_cast<std::remove_const_t<T>*>(tensor.at(0, 0, first_class)), extents, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

/// `rows`: of the shard.
template <class T>
cudaError_t make_row_maps(RowMaps& maps, const gpu::Rows<T>& tensor, int classes, std::int64_t rows,
                          int batch, int heads, int columns, int box_rows) {
  const int longer = static_cast<int>(rows % classes);
  const std::int64_t whole = rows / classes;
  maps.longer_classes = longer;
  if (longer > 0) {
    const cudaError_t error =
        make_tensor_map(maps.longer, tensor, 0, longer, classes, whole + 1, batch, heads, columns, box_rows);
    if (error != cudaSuccess) return error;
  }
  if (whole == 0) {  // classes behind the last row are never loaded
    maps.shorter = maps.longer;
    return cudaSuccess;
  }
  return make_tensor_map(maps.shorter, tensor, longer, classes - longer, classes, whole, batch, heads,
                         columns, box_rows);
}

}  // namespace annulus::attention::hopper
