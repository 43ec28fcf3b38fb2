#include <algorithm>

#include "hdf5_detail.hpp"

namespace annulus::io {

using detail::Handle;
using detail::hdf5_check;
using detail::hdf5_own;
using detail::Hdf5Lock;
using detail::text_of;

Dataset::Dataset(Handle handle, std::shared_ptr<detail::FileState> state, std::string name, DType type,
                 Extents extents)
    : Object(std::move(handle), std::move(state), std::move(name)),
      type_(type),
      extents_(std::move(extents)) {}

std::uint64_t Dataset::elements() const {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : extents_) product *= extent;
  return product;
}

void Dataset::require_type(DType type) const {
  require(type == type_, "'{}': the dataset '{}' holds {}, not {}: write it in that type", file(), name(),
          name_of(type_), name_of(type));
}

void Dataset::require_rank(std::size_t rank) const {
  require(extents_.size() == rank, "'{}': the dataset '{}' has {} dimensions, not {}: write it in that shape",
          file(), name(), extents_.size(), rank);
}

namespace {

/// Dataspaces of a transfer: what is selected of the file, and as many elements in a row in memory.
struct Selection {
  Handle file, memory;
};

void require_inside(const Dataset& dataset, const Hyperslab& part) {
  const std::size_t rank = dataset.extents().size();
  const auto fits = [&](const Extents& extents, bool may_be_empty) {
    return extents.size() == rank || (may_be_empty && extents.empty());
  };
  require(
      fits(part.start, false) && fits(part.count, false) && fits(part.stride, true) && fits(part.block, true),
      "'{}': the part of the dataset '{}' that was asked for has {} dimensions, the dataset {}",
      dataset.file(), dataset.name(), part.start.size(), rank);
  for (std::size_t i = 0; i < rank; ++i) {
    const std::uint64_t stride = part.stride.empty() ? 1 : part.stride[i];
    const std::uint64_t block = part.block.empty() ? 1 : part.block[i];
    if (part.count[i] == 0 || block == 0) continue;
    const std::uint64_t end = part.start[i] + (part.count[i] - 1) * stride + block;
    require(end <= dataset.extents()[i],
            "'{}': elements up to {} of dimension {} were asked for, the dataset '{}' has extents {}: the "
            "file is "
            "shorter than expected",
            dataset.file(), end, i, dataset.name(), text_of(dataset.extents()));
  }
}

Selection select(hid_t id, const Dataset& dataset, std::size_t size, const Hyperslab* part) {
  const std::uint64_t wanted = part == nullptr ? dataset.elements() : part->elements();
  require(size == wanted, "'{}': room for {} elements was given, {} of the dataset '{}' were asked for",
          dataset.file(), size, wanted, dataset.name());
  const auto step = [&](auto result) {
    return hdf5_check(result, "select elements of", dataset.name(), dataset.file());
  };
  Selection selection;
  selection.file = Handle(step(H5Dget_space(id)));
  selection.memory = detail::make_space({wanted}, dataset.name(), dataset.file());
  if (part != nullptr) {
    require_inside(dataset, *part);
    const std::vector<hsize_t> start(part->start.begin(), part->start.end()),
        count(part->count.begin(), part->count.end()), stride(part->stride.begin(), part->stride.end()),
        block(part->block.begin(), part->block.end());
    step(H5Sselect_hyperslab(selection.file.get(), H5S_SELECT_SET, start.data(),
                             stride.empty() ? nullptr : stride.data(), count.data(),
                             block.empty() ? nullptr : block.data()));
  }
  return selection;
}

}  // namespace

void Dataset::read_selection(DType type, void* out, std::size_t size, const Hyperslab* part) const {
  require_type(type);
  const Hdf5Lock lock;
  const Selection selection = select(id(), *this, size, part);
  if (size == 0) return;
  hdf5_check(H5Dread(id(), detail::memory_type(type), selection.memory.get(), selection.file.get(),
                     H5P_DEFAULT, out),
             "read", name(), file());
}

void Dataset::write_selection(DType type, const void* values, std::size_t size, const Hyperslab* part) {
  require_type(type);
  const Hdf5Lock lock;
  const Selection selection = select(id(), *this, size, part);
  if (size == 0) return;
  hdf5_check(H5Dwrite(id(), detail::memory_type(type), selection.memory.get(), selection.file.get(),
                      H5P_DEFAULT, values),
             "write", name(), file());
  require_written();
}

}  // namespace annulus::io
