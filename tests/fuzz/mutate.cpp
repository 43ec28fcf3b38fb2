#include "mutate.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace annulus::fuzz {

namespace {

// Numbers and texts at which parsers go wrong.
constexpr std::array<std::string_view, 20> hostile = {
    "0",      "-1",       "1",    "2147483647", "2147483648", "9223372036854775807",  "-9223372036854775808",
    "1e308",  "1e999",    "nan",  "-inf",       "1e-320",     "18446744073709551616", "\xff\xfe",
    "\"\"\"", "[[[[[[[[", "\n\n", "%s%n",       "../../..",   ".................."};

std::string_view word_at(const Input& input, std::size_t at) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  constexpr std::string_view ends = " \t\n=:,[]\"+";
  const std::size_t begin = at == 0 ? 0 : text.find_last_of(ends, at - 1) + 1;
  return text.substr(begin, std::min(text.find_first_of(ends, begin), text.size()) - begin);
}

}  // namespace

Input Mutator::next() {
  Input input = any();
  for (std::size_t changes = 1 + below(8); changes > 0; --changes) change(input);
  if (input.size() > max_size_) input.resize(max_size_);
  return input;
}

void Mutator::insert(Input& input, const std::uint8_t* data, std::size_t size) {
  if (size == 0) return;
  const Input copy(data, data + size);  // it may be a part of the input
  input.insert(input.begin() + static_cast<std::ptrdiff_t>(below(input.size() + 1)), copy.begin(),
               copy.end());
}

void Mutator::change(Input& input) {
  const std::size_t size = input.size(), at = below(size);
  const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
  const std::size_t length = std::min(size - at, std::size_t{1} << below(10));
  switch (size == 0 ? 5 : below(9)) {
    case 0:
      input[at] ^= static_cast<std::uint8_t>(1u << below(8));
      return;
    case 1:
      input[at] = static_cast<std::uint8_t>(random_());
      return;
    case 2:
      input.erase(place, place + static_cast<std::ptrdiff_t>(length));
      return;
    case 3:
      insert(input, input.data() + at, length);
      return;
    case 4:
      input.resize(at);
      return;
    case 5: {
      const std::string_view text = hostile[below(hostile.size())];
      insert(input, reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
      return;
    }
    case 6: {  // a word becomes another one, of this input or of another
      const Input& other = below(2) == 0 ? input : any();
      const std::string_view old_word = word_at(input, at);
      const Input word = [&] {
        const std::string_view text =
            below(4) == 0 ? hostile[below(hostile.size())] : word_at(other, below(other.size()));
        return Input(text.begin(), text.end());
      }();
      const auto begin =
          input.begin() + (reinterpret_cast<const std::uint8_t*>(old_word.data()) - input.data());
      const auto hole = input.erase(begin, begin + static_cast<std::ptrdiff_t>(old_word.size()));
      input.insert(hole, word.begin(), word.end());
      return;
    }
    case 7: {  // the head of this one and the tail of another
      const Input& other = any();
      const std::size_t from = below(other.size());
      input.resize(at);
      input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
      return;
    }
    default: {  // a number of 1 to 8 bytes, in either order of bytes
      constexpr std::array<std::uint64_t, 8> numbers = {
          0, 1, 0x7f, 0xff, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, ~std::uint64_t{0}};
      std::array<std::uint8_t, 8> bytes;
      const std::uint64_t number = numbers[below(numbers.size())] + below(3) - 1;
      std::memcpy(bytes.data(), &number, bytes.size());
      const std::size_t width = std::min(size - at, std::size_t{1} << below(4));
      if (below(2) == 0) std::reverse(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(width));
      std::copy_n(bytes.begin(), width, place);
    }
  }
}

}  // namespace annulus::fuzz
