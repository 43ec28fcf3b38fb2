#include "training/io/safetensors/header.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include <annulus/base/error.hpp>

#include "training/io/json.hpp"

namespace annulus::io::safetensors {

namespace {

constexpr const char* damaged = "the file is damaged or no safetensors file; copy or write it again";

using nlohmann::json;

/// Takes a header apart; every Error names the file.
class HeaderReader {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}

  Header read(const json& all) const {
    Header header;
    for (const auto& [name, value] : all.items()) {
      if (name != metadata_name) {
        header.tensors.push_back(tensor(name, value));
      } else if (!value.is_null()) {  // no metadata, to the library of the format, too
        require(value.is_object(), "'{}': {} is no object: {}", path_, metadata_name, damaged);
        for (const auto& [key, text] : value.items()) {
          require(text.is_string(), "'{}': {} of {} is no text: {}", path_, shown(key), metadata_name,
                  damaged);
          header.metadata[key] = text.get<std::string>();
        }
      }
    }
    return header;
  }

 private:
  template <class... Args>
  [[noreturn]] void wrong(const std::string& name, fmt::format_string<Args...> text, Args&&... args) const {
    fail("'{}': tensor {} {}: {}", path_, shown(name), fmt::format(text, std::forward<Args>(args)...),
         damaged);
  }

  SafetensorsTensor tensor(const std::string& name, const json& fields) const {
    if (!fields.is_object()) wrong(name, "is no object with dtype, shape and data_offsets");
    for (const char* field : {"dtype", "shape", "data_offsets"})
      if (!fields.contains(field)) wrong(name, "has no {}", field);
    for (const auto& [field, value] : fields.items())
      if (field != "dtype" && field != "shape" && field != "data_offsets")
        wrong(name, "has a field {} that the format does not know", shown(field));
    if (!fields["dtype"].is_string()) wrong(name, "has a dtype that is no text");
    const auto dtype = fields["dtype"].get<std::string>();
    const Type* type = find_type(dtype);
    require(type != nullptr,
            "'{}': tensor {} has the dtype {}, which Annulus does not read: convert the tensor to F32, BF16 "
            "or F16",
            path_, shown(name), shown(dtype));
    const Extents extents = numbers(name, fields, "shape"), offsets = numbers(name, fields, "data_offsets");
    if (offsets.size() != 2) wrong(name, "has {} data_offsets instead of two", offsets.size());
    const std::uint64_t begin = offsets[0], end = offsets[1];
    if (begin > end) wrong(name, "ends (byte {}) before it begins (byte {})", end, begin);
    const auto bytes = bytes_of(extents, type->bytes);
    if (!bytes) wrong(name, "has a shape of more than 2^64 bytes");
    if (*bytes != end - begin)
      wrong(name, "has {} bytes, but its shape ({}) of {} needs {}", end - begin, fmt::join(extents, ", "),
            type->name, *bytes);
    return {name, dtype, type->dtype, extents, begin, end};
  }

  Extents numbers(const std::string& name, const json& fields, const char* field) const {
    Extents all;
    if (!fields[field].is_array()) wrong(name, "has a {} that is no array", field);
    for (const json& number : fields[field]) {
      if (!number.is_number_unsigned())
        wrong(name, "has a {} with something else than whole numbers of 64 bits", field);
      all.push_back(number.get<std::uint64_t>());
    }
    return all;
  }

  const std::string& path_;
};

/// Throws Error unless the tensors, in the order of their data, fill `data_bytes` bytes one behind the other.
void require_contiguous(const std::vector<SafetensorsTensor>& tensors, std::uint64_t data_bytes,
                        const std::string& path) {
  std::uint64_t next = 0;
  const SafetensorsTensor* before = nullptr;
  for (const SafetensorsTensor& tensor : tensors) {
    require(tensor.end <= data_bytes,
            "'{}': tensor {} ends at byte {} of the data, of which the file has {}: the file is truncated or "
            "damaged; copy or write it again",
            path, shown(tensor.name), tensor.end, data_bytes);
    if (tensor.begin < next)
      fail("'{}': tensor {} begins at byte {} of the data, inside of tensor {}, which ends at byte {}: {}",
           path, shown(tensor.name), tensor.begin, shown(before->name), before->end, damaged);
    require(tensor.begin == next,
            "'{}': bytes {} to {} of the data, before tensor {}, belong to no tensor: {}", path, next,
            tensor.begin, shown(tensor.name), damaged);
    next = tensor.end;
    before = &tensor;
  }
  require(next == data_bytes, "'{}': {} bytes behind the last tensor belong to none: {}", path,
          data_bytes - next, damaged);
}

}  // namespace

const Type* find_type(std::string_view name) {
  const auto found =
      std::find_if(types.begin(), types.end(), [&](const Type& type) { return type.name == name; });
  return found == types.end() ? nullptr : &*found;
}

const Type& type_of(DType dtype) {
  return *std::find_if(types.begin(), types.end(), [&](const Type& type) { return type.dtype == dtype; });
}

std::optional<std::uint64_t> bytes_of(const Extents& extents, std::uint64_t element_bytes) {
  std::uint64_t bytes = element_bytes;
  // Zero elements are few, whatever the other extents.
  if (std::find(extents.begin(), extents.end(), 0u) != extents.end()) return 0;
  for (const std::uint64_t extent : extents)
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  return bytes;
}

Header parse_header(std::string_view text, std::uint64_t data_bytes, const std::string& path) {
  require(text.starts_with('{'), "'{}': the header is no JSON object: {}", path, damaged);
  Header header = HeaderReader(path).read(parse_json(text, path));
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  require_contiguous(header.tensors, data_bytes, path);
  return header;
}

std::string header_text(const Header& header, const std::string& path) {
  std::string text = "{";
  const auto separate = [&] { text += text.size() > 1 ? "," : ""; };
  try {
    if (!header.metadata.empty())
      text += fmt::format("\"{}\":{}", metadata_name, json(header.metadata).dump());
    for (const SafetensorsTensor& tensor : header.tensors) {
      separate();
      text += fmt::format(
          R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json(tensor.name).dump(), tensor.type,
          fmt::join(tensor.extents.begin(), tensor.extents.end(), ","), tensor.begin, tensor.end);
    }
  } catch (const nlohmann::json::type_error&) {
    fail("cannot write '{}': a name or text of it is no UTF-8: correct it", path);
  }
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  require(
      text.size() <= most_safetensors_header,
      "cannot write '{}': its header would have {} bytes, readers take {}: write fewer tensors into one file",
      path, text.size(), most_safetensors_header);
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace annulus::io::safetensors
