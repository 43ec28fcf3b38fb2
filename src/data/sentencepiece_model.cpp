#include "sentencepiece_model.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include <annulus/base/error.hpp>

namespace annulus::data {

namespace {

/// Fields of a message of Protocol Buffers, one after the other (protobuf.dev/programming-guides/encoding).
class MessageReader {
 public:
  explicit MessageReader(std::string_view bytes) : rest_(bytes) {}

  struct Field {
    std::uint64_t number = 0;
    std::uint64_t value = 0;  ///< of a whole number
    std::string_view bytes;   ///< of a string or a message
  };

  /// The next field; nothing at the end, and where the bytes are none: ok() tells.
  std::optional<Field> next() {
    if (rest_.empty() || !ok_) return std::nullopt;
    const std::uint64_t key = varint();
    Field field{.number = key >> 3, .value = 0, .bytes = {}};
    switch (key & 7) {
      case 0:
        field.value = varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        field.bytes = take(varint());
        break;
      case 5:
        take(4);
        break;
      default:  // groups, which no model has
        ok_ = false;
    }
    ok_ = ok_ && key >> 32 == 0;
    return ok_ ? std::optional(field) : std::nullopt;
  }
  bool ok() const { return ok_; }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const std::string_view byte = take(1);
      if (byte.empty()) return 0;
      const auto bits = static_cast<unsigned char>(byte[0]);
      value |= std::uint64_t{bits & 0x7fu} << shift;
      if (bits < 0x80) return value;
    }
    ok_ = false;
    return 0;
  }
  std::string_view take(std::uint64_t count) {
    ok_ = ok_ && count <= rest_.size();
    if (!ok_) return {};
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return taken;
  }

  std::string_view rest_;
  bool ok_ = true;
};

/// Prefixes of one text that the library has room for: of those that are replaced, and of those that are kept
/// whole.
constexpr int most_replaced = 32, most_kept = 64;

/// The largest table that is gone through; that of Unicode's NFKC has a quarter of a megabyte.
constexpr std::size_t largest_table = std::size_t{1} << 24;

/// The table of characters that are replaced before text is cut into pieces: a size, a double array of that
/// many bytes (darts-clone, https://github.com/s-yata/darts-clone), and the replacements, each closed by a
/// NUL.
class ReplacementTable {
 public:
  /// False where the table has no such form.
  bool read(std::string_view bytes) {
    std::uint32_t size = 0;
    if (bytes.size() <= sizeof size || bytes.size() > largest_table) return false;
    std::memcpy(&size, bytes.data(), sizeof size);
    bytes.remove_prefix(sizeof size);
    if (size == 0 || size >= bytes.size() || size % sizeof(std::uint32_t) != 0) return false;
    units_.resize(size / sizeof(std::uint32_t));
    std::memcpy(units_.data(), bytes.data(), size);
    replacements_ = bytes.size() - size;
    return bytes.back() == '\0';
  }

  /// What the library does with any text stays inside of the table: from the root there are ways without
  /// loops only, on each of which at most most_replaced texts end, and each of these has a replacement.
  bool is_sound() const {
    constexpr int unknown = -1, open = -2;
    std::vector<std::int16_t> ends(units_.size(), unknown);  // most of them on a way from this unit
    struct Step {
      std::size_t unit;
      std::uint32_t byte;
      std::int16_t most;
    };
    std::vector<Step> way{{0, 0, 0}};
    while (!way.empty()) {
      Step& step = way.back();
      const std::uint32_t unit = units_[step.unit];
      const std::size_t children = step.unit ^ offset(unit);
      const bool is_end = step.unit != 0 && has_end(unit);
      if (step.byte == 0) {  // come here
        if ((children | 0xff) >= units_.size()) return false;
        if (is_end && value(units_[children]) >= replacements_) return false;
        ends[step.unit] = open;
        step.byte = 1;
      }
      while (step.byte <= 0xff && label(units_[children ^ step.byte]) != step.byte) ++step.byte;
      if (step.byte <= 0xff) {
        const std::size_t child = children ^ step.byte;
        if (ends[child] == open) return false;
        if (ends[child] == unknown) {
          way.push_back({child, 0, 0});
        } else {
          step.most = std::max(step.most, ends[child]);
          ++step.byte;
        }
        continue;
      }
      if (is_end) ++step.most;
      if (step.most > most_replaced) return false;
      ends[step.unit] = step.most;
      way.pop_back();
    }
    return true;
  }

 private:
  static std::size_t offset(std::uint32_t unit) { return std::size_t{unit >> 10} << ((unit & 0x200u) >> 6); }
  static bool has_end(std::uint32_t unit) { return (unit & 0x100u) != 0; }
  static std::uint32_t label(std::uint32_t unit) { return unit & 0x800000ffu; }
  static std::uint32_t value(std::uint32_t unit) { return unit & 0x7fffffffu; }

  std::vector<std::uint32_t> units_;
  std::size_t replacements_ = 0;  // bytes of them
};

/// Of the message NormalizerSpec.
bool is_sound_normalizer(std::string_view bytes) {
  constexpr std::uint64_t precompiled_charsmap = 2;
  MessageReader reader(bytes);
  while (const auto field = reader.next()) {
    if (field->number != precompiled_charsmap || field->bytes.empty()) continue;
    ReplacementTable table;
    if (!table.read(field->bytes) || !table.is_sound()) return false;
  }
  return reader.ok();
}

/// Adds the piece of a message SentencePiece to `kept` if text is never cut inside of it.
bool is_sound_piece(std::string_view bytes, std::vector<std::string_view>& kept) {
  constexpr std::uint64_t piece = 1, type = 3, user_defined = 4;
  std::string_view text;
  std::uint64_t of_type = 0;
  MessageReader reader(bytes);
  while (const auto field = reader.next()) {
    if (field->number == piece) text = field->bytes;
    if (field->number == type) of_type = field->value;
  }
  if (of_type == user_defined) kept.push_back(text);
  return reader.ok() && text.find('\0') == text.npos;
}

/// No text begins with more than most_kept of the pieces.
bool fit_one_search(std::vector<std::string_view> kept) {
  std::sort(kept.begin(), kept.end());
  std::vector<std::string_view> around;  // those that the next one begins with
  for (const std::string_view piece : kept) {
    while (!around.empty() && !piece.starts_with(around.back())) around.pop_back();
    around.push_back(piece);
    if (around.size() > most_kept) return false;
  }
  return true;
}

}  // namespace

void require_sound_model(std::string_view model, const std::string& source) {
  constexpr std::uint64_t pieces = 1, normalizer = 3, denormalizer = 5;
  std::vector<std::string_view> kept;
  MessageReader reader(model);
  bool sound = true;
  while (const auto field = reader.next()) {
    if (field->number == pieces) sound = sound && is_sound_piece(field->bytes, kept);
    if (field->number == normalizer || field->number == denormalizer)
      sound = sound && is_sound_normalizer(field->bytes);
  }
  require(reader.ok(), "'{}' is not a SentencePiece model: give the .model file that spm_train wrote",
          source);
  require(sound && fit_one_search(std::move(kept)),
          "the SentencePiece model '{}' is damaged (its pieces or its table of replaced characters): copy it "
          "again, or "
          "write the shard again with a sound one",
          source);
}

}  // namespace annulus::data
