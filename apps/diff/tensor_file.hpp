#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <annulus/base/dtype.hpp>

#include "training/io/hdf5_files/hdf5.hpp"

namespace annulus::diff {

/// One tensor of a dump.
struct DumpedTensor {
  std::string name;
  std::int64_t order = 0;  ///< of computation
  DType dtype;             ///< that it was computed in; files hold 16-bit floats as f32
  io::Extents extents;
  std::vector<std::string> dimensions;  ///< names of the extents
};

/// A tensor dump (docs/formats/tensor-dump.md), open for reading.
class TensorFile {
 public:
  /// Throws Error naming the file when it is no dump or one of another version.
  explicit TensorFile(const std::filesystem::path& path);

  const std::string& path() const { return file_.file(); }

  /// All tensors in the order in which they were computed.
  const std::vector<DumpedTensor>& tensors() const { return tensors_; }

  /// The storage type of the run; nothing where the file does not say.
  std::optional<DType> dtype() const { return dtype_; }

  /// Program, source and settings of the run, in a line.
  std::string description() const;

  /// A part of a tensor, as doubles.
  std::vector<double> read(const DumpedTensor& tensor, const io::Hyperslab& slab) const;

 private:
  void list(const io::Group& group, const std::string& prefix);

  io::File file_;
  std::optional<DType> dtype_;
  std::vector<DumpedTensor> tensors_;
};

}  // namespace annulus::diff
