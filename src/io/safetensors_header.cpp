#include "safetensors_header.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <utility>

#include <annulus/base/error.hpp>

namespace annulus::io::safetensors {

namespace {

constexpr const char* damaged = "the file is damaged or no safetensors file; copy or write it again";

/// What the fields of a tensor have said so far.
struct Fields {
  std::optional<std::string> type;
  std::optional<Extents> extents, offsets;
};

/// Takes a header apart while nlohmann-json reads it: an object of objects, of which nothing else is kept
/// than the format knows, so that neither depth nor repetition costs memory. Each function ends reading by
/// Error.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}

  Header take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (place_ == Place::outside) return place_ = Place::header, true;
    if (place_ != Place::header) unexpected("an object");
    if (name_ == metadata_name) return place_ = Place::metadata, true;
    fields_ = {};
    return place_ = Place::tensor, true;
  }

  bool key(string_t& name) override {
    if (place_ == Place::header) {
      if (!names_.insert(name).second)
        fail("'{}': {} stands in the header twice: {}", path_, shown(name), damaged);
      name_ = name;
    } else if (place_ == Place::metadata) {
      if (header_.metadata.contains(name))
        fail("'{}': {} stands in {} twice: {}", path_, shown(name), metadata_name, damaged);
      field_ = name;
    } else {
      field_ = name;
      numbers_ = field_ == "shape" ? &fields_.extents : field_ == "data_offsets" ? &fields_.offsets : nullptr;
      if (field_ != "dtype" && numbers_ == nullptr)
        wrong("has a field {} that the format does not know", shown(name));
      if (field_ == "dtype" ? fields_.type.has_value() : numbers_->has_value())
        wrong("has its {} twice", field_);
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) finish_tensor();
    place_ = place_ == Place::header ? Place::behind : Place::header;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::tensor || field_ == "dtype") unexpected("an array");
    numbers_->emplace();
    place_ = Place::numbers;
    return true;
  }
  bool end_array() override { return place_ = Place::tensor, true; }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::numbers) unexpected("a number");
    (*numbers_)->push_back(value);
    return true;
  }
  bool string(string_t& value) override {
    if (place_ == Place::metadata) return header_.metadata[field_] = value, true;
    if (place_ != Place::tensor || field_ != "dtype") unexpected("a string");
    fields_.type = value;
    return true;
  }

  bool null() override {  // no metadata, to the library of the format, too
    if (place_ != Place::header || name_ != metadata_name) unexpected("null");
    return true;
  }
  bool boolean(bool) override { unexpected("true or false"); }
  bool number_integer(number_integer_t) override { unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    unexpected("a number that is no whole number of 64 bits");
  }
  bool binary(binary_t&) override { unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail("'{}': the header is no JSON from byte {} on: {}", path_, position, damaged);
  }

 private:
  enum class Place : std::uint8_t { outside, header, tensor, numbers, metadata, behind };

  template <class... Args>
  [[noreturn]] void wrong(fmt::format_string<Args...> text, Args&&... args) const {
    fail("'{}': tensor {} {}: {}", path_, shown(name_), fmt::format(text, std::forward<Args>(args)...),
         damaged);
  }

  [[noreturn]] void unexpected(const char* what) const {
    if (place_ == Place::outside || place_ == Place::behind)
      fail("'{}': the header is {} and no object of tensors: {}", path_, what, damaged);
    if (place_ == Place::metadata)
      fail("'{}': {} of {} is {}; texts alone stand there: {}", path_, shown(field_), metadata_name, what,
           damaged);
    if (place_ == Place::header) wrong("is {} and no object with dtype, shape and data_offsets", what);
    wrong("has {} for its {}", what, field_);
  }

  void finish_tensor() {
    if (!fields_.type) wrong("has no dtype");
    if (!fields_.extents) wrong("has no shape");
    if (!fields_.offsets) wrong("has no data_offsets");
    const Extents& offsets = *fields_.offsets;
    const Type* type = find_type(*fields_.type);
    if (type == nullptr)
      fail(
          "'{}': tensor {} has the dtype {}, which Annulus does not read: convert the tensor to F32, BF16 or "
          "F16",
          path_, shown(name_), shown(*fields_.type));
    if (offsets.size() != 2) wrong("has {} data_offsets instead of two", offsets.size());
    if (offsets[0] > offsets[1]) wrong("ends (byte {}) before it begins (byte {})", offsets[1], offsets[0]);
    const auto bytes = bytes_of(*fields_.extents, type->bytes);
    if (!bytes) wrong("has a shape of more than 2^64 bytes");
    if (*bytes != offsets[1] - offsets[0])
      wrong("has {} bytes, but its shape ({}) of {} needs {}", offsets[1] - offsets[0],
            fmt::join(fields_.extents->begin(), fields_.extents->end(), ", "), type->name, *bytes);
    header_.tensors.push_back(
        {name_, std::string(type->name), type->dtype, *std::move(fields_.extents), offsets[0], offsets[1]});
  }

  const std::string& path_;
  Place place_ = Place::outside;
  std::string name_, field_;
  Fields fields_;
  std::optional<Extents>* numbers_ = nullptr;
  std::set<std::string, std::less<>> names_;
  Header header_;
};

/// Throws Error unless the tensors, in the order of their data, fill `data_bytes` bytes one behind the other.
void require_contiguous(const std::vector<SafetensorsTensor>& tensors, std::uint64_t data_bytes,
                        const std::string& path) {
  std::uint64_t next = 0;
  const SafetensorsTensor* before = nullptr;
  for (const SafetensorsTensor& tensor : tensors) {
    require(tensor.end <= data_bytes,
            "'{}': tensor {} ends at byte {} of the data, of which the file has {}: the file is truncated or "
            "damaged; "
            "copy or write it again",
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

std::string shown(std::string_view name) {
  constexpr std::size_t longest = 120;
  const bool cut = name.size() > longest;
  const nlohmann::json text(std::string(name.substr(0, longest)));
  return text.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + (cut ? "…" : "");
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
  const std::size_t zero = text.find('\0');  // where nlohmann-json takes the text to end
  require(zero == text.npos, "'{}': the header is no JSON from byte {} on: {}", path, zero, damaged);
  HeaderReader reader(path);
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  Header header = reader.take();
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
      text += fmt::format("\"{}\":{}", metadata_name, nlohmann::json(header.metadata).dump());
    for (const SafetensorsTensor& tensor : header.tensors) {
      separate();
      text +=
          fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                      nlohmann::json(tensor.name).dump(), tensor.type,
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
  std::string length;
  for (unsigned i = 0; i < length_bytes; ++i)
    length += static_cast<char>(static_cast<unsigned char>(std::uint64_t{text.size()} >> (8 * i)));
  return length + text;
}

}  // namespace annulus::io::safetensors
