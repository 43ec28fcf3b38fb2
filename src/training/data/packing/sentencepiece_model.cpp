#include "sentencepiece_model.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include <annulus/base/error.hpp>

namespace annulus::data {

namespace {

/// U+2581, what a space becomes before text is cut into pieces.
constexpr std::string_view space_mark = "\xe2\x96\x81";

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

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
  /// What keys and replacements tell about cuts; after is_sound().
  struct CutFacts {
    bool marks = false;           ///< a replacement holds the mark of spaces
    bool space_in_key = false;    ///< a key holds a space
    bool newline_in_key = false;  ///< a longer key than "\n" holds one
    bool newline_is_space = false;
    bool keeps_letters = true;  ///< no key that ends in a letter or digit of ASCII becomes nothing or a space
  };
  const CutFacts& facts() const { return facts_; }

  /// False where the table has no such form.
  bool read(std::string_view bytes) {
    std::uint32_t size = 0;
    if (bytes.size() <= sizeof size || bytes.size() > largest_table) return false;
    std::memcpy(&size, bytes.data(), sizeof size);
    bytes.remove_prefix(sizeof size);
    if (size == 0 || size >= bytes.size() || size % sizeof(std::uint32_t) != 0) return false;
    units_.resize(size / sizeof(std::uint32_t));
    std::memcpy(units_.data(), bytes.data(), size);
    replacements_ = bytes.substr(size);
    return bytes.back() == '\0';
  }

  /// What the library does with any text stays inside of the table: from the root there are ways without
  /// loops only, on each of which at most most_replaced texts end, and each of these has a replacement.
  bool is_sound() {
    constexpr int unknown = -1, open = -2;
    std::vector<std::int16_t> ends(units_.size(), unknown);  // most of them on a way from this unit
    struct Visit {
      std::size_t unit;
      std::uint32_t byte;
      std::int16_t most;
    };
    std::vector<Visit> way{{0, 0, 0}};
    while (!way.empty()) {
      Visit& step = way.back();
      const std::uint32_t unit = units_[step.unit];
      const std::size_t children = step.unit ^ offset(unit);
      const bool is_end = step.unit != 0 && has_end(unit);
      if (step.byte == 0) {  // come here
        if ((children | 0xff) >= units_.size()) return false;
        if (is_end && value(units_[children]) >= replacements_.size()) return false;
        if (is_end) learn_from_end(step.unit);
        ends[step.unit] = open;
        step.byte = 1;
      }
      while (step.byte <= 0xff && label(units_[children ^ step.byte]) != step.byte) ++step.byte;
      if (step.byte <= 0xff) {
        const std::size_t child = children ^ step.byte;
        if (ends[child] == open) return false;
        facts_.space_in_key = facts_.space_in_key || step.byte == ' ';
        facts_.newline_in_key = facts_.newline_in_key || (step.byte == '\n' && step.unit != 0);
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
    learn_from_newline();
    return true;
  }

 private:
  static std::size_t offset(std::uint32_t unit) { return std::size_t{unit >> 10} << ((unit & 0x200u) >> 6); }
  static bool has_end(std::uint32_t unit) { return (unit & 0x100u) != 0; }
  static std::uint32_t label(std::uint32_t unit) { return unit & 0x800000ffu; }
  static std::uint32_t value(std::uint32_t unit) { return unit & 0x7fffffffu; }

  /// Text that replaces the key that ends at a unit.
  std::string_view replacement(std::size_t unit) const {
    const std::string_view from = replacements_.substr(value(units_[unit ^ offset(units_[unit])]));
    return from.substr(0, from.find('\0'));
  }
  void learn_from_end(std::size_t unit) {
    const std::string_view text = replacement(unit);
    facts_.marks = facts_.marks || text.find(space_mark) != text.npos;
    if (is_letter(static_cast<char>(label(units_[unit]))) && (text.empty() || text.back() == ' '))
      facts_.keeps_letters = false;
  }
  void learn_from_newline() {
    const std::size_t unit = offset(units_[0]) ^ std::size_t{'\n'};
    if (label(units_[unit]) != '\n' || !has_end(units_[unit])) return;
    facts_.newline_is_space = replacement(unit) == " ";
    for (std::uint32_t byte = 1; byte <= 0xff; ++byte)
      if (label(units_[unit ^ offset(units_[unit]) ^ byte]) == byte) facts_.newline_in_key = true;
  }

  std::vector<std::uint32_t> units_;
  std::string_view replacements_;
  CutFacts facts_;
};

/// Reads the message NormalizerSpec, which also tells where text may be cut.
bool is_sound_normalizer(std::string_view bytes, WordBreaks& breaks) {
  constexpr std::uint64_t precompiled_charsmap = 2, add_dummy_prefix = 3, remove_extra_whitespaces = 4,
                          escape_whitespaces = 5;
  MessageReader reader(bytes);
  while (const auto field = reader.next()) {
    if (field->number == add_dummy_prefix) breaks.adds_space = field->value != 0;
    if (field->number == remove_extra_whitespaces) breaks.joins_spaces = field->value != 0;
    if (field->number == escape_whitespaces) breaks.known = breaks.known && field->value != 0;
    if (field->number != precompiled_charsmap || field->bytes.empty()) continue;
    ReplacementTable table;
    if (!table.read(field->bytes) || !table.is_sound()) return false;
    const ReplacementTable::CutFacts& facts = table.facts();
    breaks.known = breaks.known && !breaks.replaces && !facts.marks && !facts.space_in_key;
    breaks.replaces = true;
    breaks.keeps_letters = facts.keeps_letters;
    breaks.newline = facts.newline_is_space && !facts.newline_in_key;
  }
  return reader.ok();
}

/// Reads the message TrainerSpec.
bool is_sound_trainer(std::string_view bytes, WordBreaks& breaks) {
  constexpr std::uint64_t model_type = 3, treat_whitespace_as_suffix = 24, unigram = 1, bpe = 2;
  MessageReader reader(bytes);
  while (const auto field = reader.next()) {
    const bool known_type = field->value == unigram || field->value == bpe;
    if ((field->number == model_type && !known_type) ||
        (field->number == treat_whitespace_as_suffix && field->value != 0))
      breaks.known = false;
  }
  return reader.ok();
}

/// Whether a text of the model's own form has a space in it with something else before.
bool spans_words(std::string_view piece) {
  while (piece.starts_with(space_mark)) piece.remove_prefix(space_mark.size());
  return piece.find(space_mark) != piece.npos || piece.find(' ') != piece.npos;
}

struct Pieces {
  std::vector<std::string_view> kept;  // those inside of which text is never cut
  bool span_words = false, have_space = false;
};

/// Reads the message SentencePiece.
bool is_sound_piece(std::string_view bytes, Pieces& pieces) {
  constexpr std::uint64_t piece = 1, type = 3, normal = 1, user_defined = 4;
  std::string_view text;
  std::uint64_t of_type = normal;
  MessageReader reader(bytes);
  while (const auto field = reader.next()) {
    if (field->number == piece) text = field->bytes;
    if (field->number == type) of_type = field->value;
  }
  if (of_type == user_defined) pieces.kept.push_back(text);
  pieces.have_space = pieces.have_space || (of_type == normal && text == space_mark);
  pieces.span_words = pieces.span_words || spans_words(text);
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

WordBreaks require_sound_model(std::string_view model, const std::string& source) {
  constexpr std::uint64_t pieces = 1, trainer = 2, normalizer = 3, denormalizer = 5;
  WordBreaks breaks, other_way;
  breaks.known = true;
  Pieces found;
  MessageReader reader(model);
  bool sound = true;
  while (const auto field = reader.next()) {
    if (field->number == pieces) sound = sound && is_sound_piece(field->bytes, found);
    if (field->number == trainer) sound = sound && is_sound_trainer(field->bytes, breaks);
    if (field->number == normalizer) sound = sound && is_sound_normalizer(field->bytes, breaks);
    if (field->number == denormalizer) sound = sound && is_sound_normalizer(field->bytes, other_way);
  }
  require(reader.ok(), "'{}' is not a SentencePiece model: give the .model file that spm_train wrote",
          source);
  require(sound && fit_one_search(std::move(found.kept)),
          "the SentencePiece model '{}' is damaged (its pieces or its table of replaced characters): copy it "
          "again, or write the shard again with a sound one",
          source);
  if (found.span_words || !found.have_space || (breaks.joins_spaces && !breaks.adds_space))
    breaks.known = false;
  return breaks;
}

std::optional<TextCut> WordBreaks::last(std::string_view text) const {
  if (!known) return std::nullopt;
  // Where spaces are joined, those at the end of the first part and at the start of the second become the one
  // space of the cut; a mark of spaces in the text itself would go with them.
  const std::size_t marked = joins_spaces ? text.find(space_mark) : 0;
  for (std::size_t at = text.size(); at-- > 1;) {
    if (text[at] != ' ' && !(newline && text[at] == '\n')) continue;
    const std::string_view front = text.substr(0, at);
    const bool ends_word = replaces ? keeps_letters && is_letter(front.back())
                                    : front.back() != ' ' && !front.ends_with(space_mark);
    if (at <= marked || ends_word) return TextCut{at, adds_space ? at + 1 : at};
  }
  return std::nullopt;
}

}  // namespace annulus::data
