#include "tensor_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

#include <annulus/base/error.hpp>

#include "base/with_dtype.hpp"
#include "training/dump/format.hpp"

namespace annulus::diff {

namespace format = dump::format;

namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

template <class T>
std::vector<double> read_as(const io::Dataset& dataset, const io::Hyperslab& slab) {
  std::vector<T> values(slab.elements());
  dataset.read(slab, std::span<T>(values));
  return std::vector<double>(values.begin(), values.end());
}

}  // namespace

TensorFile::TensorFile(const std::filesystem::path& path) : file_(io::File::open(path)) {
  require(file_.has_attribute(format::format_attribute) &&
              file_.string_attribute(format::format_attribute) == format::name,
          "'{}' is no tensor dump: annulus-train and annulus-bench attention write such files with --dump",
          path.string());
  const std::int64_t version = file_.integer_attribute(format::version_attribute);
  require(
      version == format::version,
      "'{}' is a tensor dump of version {}, this program reads version {}: take the programs of one version",
      path.string(), version, format::version);
  if (file_.has_attribute(format::dtype_attribute))
    dtype_ = parse_dtype(file_.string_attribute(format::dtype_attribute), path.string());
  list(file_, "");
  std::ranges::stable_sort(tensors_, {}, &DumpedTensor::order);
}

void TensorFile::list(const io::Group& group, const std::string& prefix) {
  for (const std::string& name : group.names()) {
    if (group.is_group(name)) {
      list(group.group(name), prefix + name + "/");
      continue;
    }
    const io::Dataset dataset = group.dataset(name);
    require(!dataset.extents().empty(), "'{}': the tensor '{}' is a scalar: write it with one dimension",
            path(), prefix + name);
    tensors_.push_back(
        {prefix + name, dataset.integer_attribute(format::order_attribute),
         parse_dtype(dataset.string_attribute(format::dtype_attribute), path() + "/" + prefix + name),
         dataset.extents(), words_of(dataset.string_attribute(format::dimensions_attribute))});
    require(tensors_.back().dimensions.size() == dataset.extents().size(),
            "'{}': the tensor '{}' has {} dimensions and names for {}: the file is damaged; write it again",
            path(), prefix + name, dataset.extents().size(), tensors_.back().dimensions.size());
  }
}

std::string TensorFile::description() const {
  std::vector<std::string> parts;
  const auto add = [&](const char* name, const char* text) {
    if (file_.has_attribute(name))
      parts.push_back(fmt::format(fmt::runtime(text), file_.string_attribute(name)));
  };
  const auto add_number = [&](const char* name, const char* text) {
    if (file_.has_attribute(name))
      parts.push_back(fmt::format(fmt::runtime(text), file_.integer_attribute(name)));
  };
  add("program", "{}");
  add("git_hash", "git {}");
  add_number("step", "step {}");
  add("dtype", "{}");
  add("device", "{}");
  add_number("ranks", "{} ranks");
  add("schedule", "{}");
  add("layout", "{}");
  if (file_.has_attribute(format::complete_attribute) &&
      file_.integer_attribute(format::complete_attribute) == 0)
    parts.push_back("INCOMPLETE: it failed on the way");
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<double> TensorFile::read(const DumpedTensor& tensor, const io::Hyperslab& slab) const {
  const io::Dataset dataset = file_.dataset(tensor.name);
  std::vector<double> values;
  require(with_dtype<float, double, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t, std::uint32_t,
                     std::uint64_t>(dataset.type(),
                                    [&](auto zero) { values = read_as<decltype(zero)>(dataset, slab); }),
          "'{}': the tensor '{}' has elements of a type that dumps do not have: write it as f32 or f64",
          path(), tensor.name);
  return values;
}

}  // namespace annulus::diff
