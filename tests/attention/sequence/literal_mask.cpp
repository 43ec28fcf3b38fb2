#include "literal_mask.hpp"

#include <fmt/format.h>

#include <functional>
#include <initializer_list>

namespace annulus::test {

namespace {

struct Term {
  std::string text;
  std::function<bool(std::int64_t q, std::int64_t k)> allows;
};

LiteralMask joined(std::int64_t tokens, std::initializer_list<Term> terms) {
  LiteralMask mask{"", tokens, std::vector<char>(static_cast<std::size_t>(tokens * tokens), 1)};
  for (const Term& term : terms) {
    mask.text += (mask.text.empty() ? "" : "+") + term.text;
    for (std::int64_t q = 0; q < tokens; ++q)
      for (std::int64_t k = 0; k < tokens; ++k)
        if (!term.allows(q, k)) mask.allowed[static_cast<std::size_t>(q * tokens + k)] = 0;
  }
  return mask;
}

Term full() {
  return {"full", [](auto, auto) { return true; }};
}

Term causal() {
  return {"causal", [](auto q, auto k) { return k <= q; }};
}

Term window(std::int64_t left, std::int64_t right) {
  return {fmt::format("window:{},{}", left, right),
          [=](auto q, auto k) { return q - left <= k && k <= q + right; }};
}

Term dilated(std::int64_t width, std::int64_t distance) {
  return {fmt::format("dilated:{},{}", width, distance), [=](auto q, auto k) {
            for (std::int64_t i = 0; i < width && i * distance <= q; ++i)
              if (k == q - i * distance) return true;
            return false;
          }};
}

/// About one document every `length` tokens; `closed` appends the length of the sequence.
Term documents(std::int64_t tokens, int length, bool closed, std::mt19937& random) {
  std::string text = "documents:0";
  std::vector<int> number(static_cast<std::size_t>(tokens));
  int document = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    if (t > 0 && random() % static_cast<unsigned>(length) == 0) {
      text += fmt::format(",{}", t);
      ++document;
    }
    number[static_cast<std::size_t>(t)] = document;
  }
  if (closed && tokens > 0) text += fmt::format(",{}", tokens);
  return {text, [=](auto q, auto k) {
            return k <= q && number[static_cast<std::size_t>(q)] == number[static_cast<std::size_t>(k)];
          }};
}

/// A random block list in which about one block in `rarity` is missing (or, if negative, present).
Term blocks(std::int64_t tokens, std::int64_t size, int rarity, std::mt19937& random,
            const TemporaryFolder& folder) {
  const std::int64_t count = (tokens + size - 1) / size;
  std::vector<char> listed(static_cast<std::size_t>(count * count));
  std::string content = fmt::format("annulus-block-mask 1\nblocks {}\n", count);
  for (std::int64_t row = 0; row < count; ++row) {
    content += fmt::format("{}:", row);
    for (std::int64_t column = 0; column < count; ++column) {
      const bool hit = random() % static_cast<unsigned>(std::abs(rarity)) == 0;
      if (hit == (rarity > 0)) continue;
      listed[static_cast<std::size_t>(row * count + column)] = 1;
      content += fmt::format(" {}", column);
    }
    content += '\n';
  }
  const std::string file = folder.write(fmt::format("blocks-{:x}.txt", random()), content + "end\n");
  return {fmt::format("blocks:{},{}", size, file),
          [=](auto q, auto k) { return listed[static_cast<std::size_t>(q / size * count + k / size)] != 0; }};
}

}  // namespace

std::vector<LiteralMask> literal_masks(std::int64_t tokens, std::mt19937& random,
                                       const TemporaryFolder& folder) {
  const auto any = [&random](std::int64_t begin, std::int64_t end) {
    return std::uniform_int_distribution<std::int64_t>(begin, end)(random);
  };
  const Term few = documents(tokens, 11, false, random), many = documents(tokens, 3, true, random);
  const Term dense = blocks(tokens, 4, 3, random, folder),
             sparse = blocks(tokens, any(1, 9), -4, random, folder);
  const Term tokenwise = blocks(tokens, 1, 5, random, folder);
  std::vector<LiteralMask> masks;
  const auto add = [&](std::initializer_list<Term> terms) { masks.push_back(joined(tokens, terms)); };
  add({full()});
  add({causal()});
  add({window(0, 0)});
  add({window(3, 0)});
  add({window(0, 2)});
  add({window(any(0, 20), any(0, 20))});
  add({window(1'000'000, 4'000'000'000'000'000'000)});
  add({dilated(1, 1)});
  add({dilated(4, 1)});
  add({dilated(3, 2)});
  add({dilated(any(1, 9), any(1, 9))});
  add({dilated(4'000'000'000'000'000'000, 3)});
  add({dilated(2, 4'000'000'000'000'000'000)});
  add({few});
  add({many});
  add({dense});
  add({sparse});
  add({tokenwise});
  add({blocks(tokens, 1000, 2, random, folder)});
  add({causal(), window(5, 2)});
  add({few, window(4, 1)});
  add({dilated(6, any(2, 4)), few});
  add({causal(), many});
  add({window(any(0, 20), 0), dilated(5, any(1, 6))});
  add({causal(), dense});
  add({sparse, window(any(0, 9), any(0, 9))});
  add({few, tokenwise});
  add({dilated(7, any(2, 3)), dense});
  add({window(9, 9), many, dilated(4, 2), dense, causal()});
  return masks;
}

}  // namespace annulus::test
