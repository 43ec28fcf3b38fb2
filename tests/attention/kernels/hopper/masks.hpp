#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>

#include <annulus/attention/sequence/mask_rule.hpp>

#include "arrays.hpp"

/// Masks, with their arrays on host and device.
namespace annulus::hopper_kernels {

/// A mask, with its arrays on the device.
struct MaskCase {
  std::string text;
  MaskRule rule;  // pointers of the host
  std::vector<std::int64_t> documents, block_rows, block_columns;
  std::vector<std::uint32_t> query_blocks;
  std::vector<std::int64_t> listed_keys;  // (batch × kv heads, how many), in the place of a position map
  std::int64_t listed_keys_of_head = 0;   // 0: none

  MaskRule on_host() const {
    MaskRule r = rule;
    if (!documents.empty()) {
      r.document_starts = documents.data();
      r.documents = static_cast<std::int64_t>(documents.size()) - 1;
    }
    if (!block_rows.empty()) {
      r.block_row_starts = block_rows.data();
      r.block_columns = block_columns.data();
    }
    if (!query_blocks.empty()) r.query_blocks = query_blocks.data();
    return r;
  }
  /// `lists`: 1 for all heads, or so many of `heads_of_list` heads each; every fifth of these has no block at
  /// all.
  void list_blocks(std::int64_t size, int percent, std::mt19937& random, std::int64_t lists = 1,
                   std::int64_t heads_of_list = 0) {
    rule.block_size = size;
    rule.block_lists = lists;
    rule.heads_of_list = heads_of_list;
    const auto listed = [&] { return static_cast<std::int64_t>(block_columns.size()); };
    for (std::int64_t list = 0; list < lists; ++list) {
      for (std::int64_t r = 0; r < rule.block_rows(); ++r) {
        block_rows.push_back(listed());
        for (std::int64_t c = 0; c < rule.block_rows() && list % 5 != 4; ++c)
          if (c == r || static_cast<int>(random() % 100) < percent) block_columns.push_back(c);
      }
      block_rows.push_back(listed());
    }
  }
  /// Blocks of each query: `percent` of all, and its own. Each `alike` neighbouring queries have the same
  /// ones, and every tenth run of them none.
  void list_blocks_of_queries(std::int64_t size, int percent, std::int64_t alike, std::mt19937& random,
                              std::int64_t lists, std::int64_t heads_of_list) {
    rule.block_size = size;
    rule.block_lists = lists;
    rule.heads_of_list = heads_of_list;
    const std::int64_t words = rule.words_of_query();
    query_blocks.assign(static_cast<std::size_t>(lists * rule.tokens * words), 0);
    for (std::int64_t row = 0; row < lists * rule.tokens; ++row) {
      const std::int64_t query = row % rule.tokens;
      std::uint32_t* const bits = query_blocks.data() + row * words;
      if (query % alike != 0) {
        std::copy(bits - words, bits, bits);
        continue;
      }
      if (query / alike % 10 == 7) continue;
      for (std::int64_t b = 0; b < rule.block_rows(); ++b)
        if (b == query / size || static_cast<int>(random() % 100) < percent) bits[b / 32] |= 1u << b % 32;
    }
  }
  /// Vertical-slash sparsity's columns: `count` random keys of each of `heads` heads without the blocks that
  /// the rule lists so far. Some heads have fewer, and positions behind all tokens in their place.
  void list_keys(std::int64_t count, std::int64_t heads, std::mt19937& random) {
    rule.blocks_excluded = true;
    listed_keys_of_head = count;
    for (std::int64_t head = 0; head < heads; ++head) {
      std::set<std::int64_t> keys;
      const std::int64_t own = std::min(head % 3 == 2 ? count - count / 4 : count, rule.tokens);
      while (static_cast<std::int64_t>(keys.size()) < own)
        keys.insert(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rule.tokens)));
      listed_keys.insert(listed_keys.end(), keys.begin(), keys.end());
      listed_keys.insert(listed_keys.end(), static_cast<std::size_t>(count - own), rule.tokens);
    }
  }
  /// The keys' position map: where they are listed, how many.
  PositionMap key_map(const PositionMap& otherwise) const {
    return listed_keys_of_head == 0 ? otherwise : PositionMap{.count = listed_keys_of_head};
  }
  /// Vertical-slash sparsity without its verticals: blocks of 64 at `count` random block distances, 0 among
  /// them, others for each list, in runs of `run` neighbours.
  void list_slashes(std::int64_t count, std::int64_t run, std::mt19937& random, std::int64_t lists,
                    std::int64_t heads_of_list) {
    rule.block_size = 64;
    rule.block_lists = lists;
    rule.heads_of_list = heads_of_list;
    const std::int64_t blocks = rule.block_rows();
    for (std::int64_t list = 0; list < lists; ++list) {
      std::vector<bool> distances(static_cast<std::size_t>(blocks), false);
      distances[0] = true;
      for (std::int64_t chosen = 1; chosen < std::min(count, blocks);) {
        const std::size_t first = random() % distances.size(),
                          end = std::min(first + static_cast<std::size_t>(run), distances.size());
        for (std::size_t distance = first; distance < end && chosen < count; ++distance) {
          if (!distances[distance]) ++chosen;
          distances[distance] = true;
        }
      }
      for (std::int64_t r = 0; r < blocks; ++r) {
        block_rows.push_back(static_cast<std::int64_t>(block_columns.size()));
        for (std::int64_t c = 0; c <= r; ++c)
          if (distances[static_cast<std::size_t>(r - c)]) block_columns.push_back(c);
      }
      block_rows.push_back(static_cast<std::int64_t>(block_columns.size()));
    }
  }
};

/// MaskCase::rule with its arrays in device memory.
class MaskOnDevice {
 public:
  explicit MaskOnDevice(const MaskCase& mask)
      : rule_(mask.on_host()),
        documents_(mask.documents),
        rows_(mask.block_rows),
        columns_(mask.block_columns),
        query_blocks_(mask.query_blocks),
        listed_keys_(mask.listed_keys) {
    if (rule_.document_starts != nullptr) rule_.document_starts = documents_.data();
    if (rule_.block_row_starts != nullptr) {
      rule_.block_row_starts = rows_.data();
      rule_.block_columns = columns_.data();
    }
    if (rule_.query_blocks != nullptr) rule_.query_blocks = query_blocks_.data();
  }
  const MaskRule& rule() const { return rule_; }
  /// Null without any.
  const std::int64_t* listed_keys() const { return listed_keys_.count() > 0 ? listed_keys_.data() : nullptr; }

 private:
  MaskRule rule_;
  DeviceArray<std::int64_t> documents_, rows_, columns_;
  DeviceArray<std::uint32_t> query_blocks_;
  DeviceArray<std::int64_t> listed_keys_;
};

inline MaskCase parse_mask(const std::string& text, std::int64_t tokens, int heads, int kv_heads) {
  MaskCase mask;
  mask.text = text;
  mask.rule.tokens = tokens;
  if (text == "full") return mask;
  long long a = 0, run = 1;
  int b = 0;
  std::mt19937 random(1);
  if (std::sscanf(text.c_str(), "blocks:%lld:%d", &a, &b) == 2) {
    mask.list_blocks(a, b, random);
    return mask;
  }
  if (std::sscanf(text.c_str(), "lists:%lld:%d", &a, &b) == 2) {
    mask.list_blocks(a, b, random, heads, 1);
    return mask;
  }
  if (std::sscanf(text.c_str(), "shared:%lld:%d", &a, &b) == 2) {
    mask.list_blocks(a, b, random, kv_heads, heads / kv_heads);
    return mask;
  }
  mask.rule.right = 0;
  const auto are = [&](const char* format) {
    return std::sscanf(text.c_str(), format, &a, &run) >= 1 && run >= 1;
  };
  if (are("slashes:%lld:%lld")) {
    mask.list_slashes(a, run, random, kv_heads, heads / kv_heads);
  } else if (are("head-slashes:%lld:%lld")) {
    mask.list_slashes(a, run, random, heads, 1);
  } else if (long long alike = 1; std::sscanf(text.c_str(), "queries:%lld:%d:%lld", &a, &b, &alike) >= 2) {
    mask.list_blocks_of_queries(a, b, alike, random, kv_heads, heads / kv_heads);
  } else if (std::sscanf(text.c_str(), "columns:%lld:%d", &a, &b) == 2) {
    if (heads != kv_heads) {
      std::fprintf(stderr, "mask '%s': each head lists its own keys: give as many kv heads as heads\n",
                   text.c_str());
      std::exit(2);
    }
    mask.list_slashes(b, 1, random, heads, 1);
    mask.list_keys(a, heads, random);
  } else if (std::sscanf(text.c_str(), "window:%lld", &a) == 1) {
    mask.rule.left = a;
  } else if (std::sscanf(text.c_str(), "dilation:%lld", &a) == 1) {
    mask.rule.dilation = a;
  } else if (text != "causal") {
    std::fprintf(stderr,
                 "unknown mask '%s': full, causal, window:LEFT, dilation:D, blocks:SIZE:PERCENT, "
                 "lists:SIZE:PERCENT, shared:SIZE:PERCENT, slashes:COUNT:RUN, "
                 "head-slashes:COUNT:RUN, columns:COUNT:SLASHES or queries:SIZE:PERCENT:ALIKE\n",
                 text.c_str());
    std::exit(2);
  }
  return mask;
}

}  // namespace annulus::hopper_kernels
