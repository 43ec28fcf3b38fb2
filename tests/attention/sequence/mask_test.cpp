#include <annulus/attention/sequence/mask.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "literal_mask.hpp"
#include "support/error_text.hpp"

namespace annulus {
namespace {

using test::LiteralMask;
using test::TemporaryFolder;
using testing::HasSubstr;

std::vector<std::int64_t> starts_of(const Mask& mask) {
  return {mask.document_starts().begin(), mask.document_starts().end()};
}

/// The dense matrix of a mask.
std::vector<char> matrix(const Mask& mask) {
  const MaskRule rule = mask.rule();
  std::vector<char> allowed;
  for (std::int64_t q = 0; q < mask.tokens(); ++q)
    for (std::int64_t k = 0; k < mask.tokens(); ++k) allowed.push_back(rule.allows(q, k) ? 1 : 0);
  return allowed;
}

TEST(Mask, DefaultIsFullOverNothing) {
  const Mask mask;
  EXPECT_EQ(mask.tokens(), 0);
  EXPECT_EQ(mask.to_string(), "full");
  EXPECT_EQ(mask.pairs({}, {}), 0);
}

TEST(Mask, TextRoundTrip) {
  std::mt19937 random(1);
  const TemporaryFolder folder;
  for (const std::int64_t tokens : {0, 1, 29}) {
    for (const LiteralMask& literal : test::literal_masks(tokens, random, folder)) {
      const Mask mask = Mask::parse(literal.text, tokens);
      EXPECT_EQ(mask.to_string(), literal.text);
      EXPECT_EQ(matrix(Mask::parse(mask.to_string(), tokens)), literal.allowed) << literal.text;
    }
  }
}

TEST(Mask, ReducesToNumbers) {
  const MaskRule causal = Mask::parse("causal", 100).rule();
  EXPECT_EQ(causal.tokens, 100);
  EXPECT_EQ(causal.left, MaskRule::unbounded);
  EXPECT_EQ(causal.right, 0);
  EXPECT_EQ(causal.document_starts, nullptr);
  EXPECT_EQ(causal.block_row_starts, nullptr);
  const MaskRule joined = Mask::parse("causal+window:9,4+dilated:4,5", 100).rule();
  EXPECT_EQ(joined.left, 9);
  EXPECT_EQ(joined.right, 0);
  EXPECT_EQ(joined.dilation, 5);
  EXPECT_EQ(Mask::parse("dilated:4,5", 100).rule().left, 15);
  EXPECT_EQ(Mask::parse("window:9223372036854775807,0", 100).rule().left, MaskRule::unbounded);
}

TEST(Mask, DocumentsAreClosedByTheLength) {
  EXPECT_EQ(starts_of(Mask::parse("documents:0,3,7", 10)), (std::vector<std::int64_t>{0, 3, 7, 10}));
  EXPECT_EQ(starts_of(Mask::parse("documents:0,3,7,10", 10)), (std::vector<std::int64_t>{0, 3, 7, 10}));
  EXPECT_EQ(Mask::parse("documents:0,3,7", 10).rule().documents, 3);
  EXPECT_EQ(starts_of(Mask::parse("documents:0", 0)), (std::vector<std::int64_t>{0}));
}

TEST(Mask, DocumentsFromData) {
  const std::vector<std::int64_t> starts{0, 4, 6};
  for (const char* text : {"documents", "causal", "causal+documents"}) {
    const Mask mask = Mask::with_documents(text, 10, starts);
    EXPECT_EQ(starts_of(mask), (std::vector<std::int64_t>{0, 4, 6, 10}));
    EXPECT_EQ(matrix(mask), matrix(Mask::parse("documents:0,4,6", 10))) << text;
    EXPECT_EQ(matrix(Mask::parse(mask.to_string(), 10)), matrix(mask)) << text;
  }
  EXPECT_EQ(Mask::with_documents("documents", 10, starts).to_string(), "documents:0,4,6");
  EXPECT_EQ(matrix(Mask::with_documents("window:1,0+documents", 10, starts)),
            matrix(Mask::parse("documents:0,4,6+window:1,0", 10)));
  EXPECT_EQ(matrix(Mask::with_documents("dilated:2,2", 10, starts)),
            matrix(Mask::parse("documents:0,4,6+dilated:2,2", 10)));
}

TEST(Mask, OtherDocumentsLeaveTheRestAsItIs) {
  const TemporaryFolder folder;
  const std::string blocks = "annulus-block-mask 1\nblocks 5\n0: 0\n1: 1\n2: 0-2\n3: 3\n4: 1 4\nend\n";
  const std::string list = folder.file("list.txt");
  const std::vector<std::int64_t> one{0}, three{0, 4, 6}, two{0, 3};
  for (const std::string& text : {std::string("documents"), std::string("window:2,0"), "blocks:2," + list,
                                  "dilated:2,2+documents+blocks:2," + list}) {
    folder.write("list.txt", blocks);
    const Mask first = Mask::with_documents(text, 10, one), expected = Mask::with_documents(text, 10, three);
    folder.write("list.txt", "no block list");  // which is not read again
    for (const Mask& mask :
         {first.with_other_documents(three), first.with_other_documents(two).with_other_documents(three)}) {
      EXPECT_EQ(mask.to_string(), expected.to_string());
      EXPECT_EQ(matrix(mask), matrix(expected));
      EXPECT_EQ(mask.documents_fingerprint(), expected.documents_fingerprint());
      EXPECT_EQ(mask.blocks_fingerprint(), expected.blocks_fingerprint());
    }
  }
  EXPECT_THAT(error_text([&] { Mask::parse("full", 10).with_other_documents(three, "train.mask"); }),
              HasSubstr("train.mask = 'full'"));
}

TEST(Mask, CopiesOutliveTheOriginalAndShareItsBlockList) {
  const TemporaryFolder folder;
  const std::string text = "documents:0,2+blocks:2," +
                           folder.write("list.txt", "annulus-block-mask 1\nblocks 2\n0: 0\n1: 0-1\nend\n");
  auto original = std::make_unique<Mask>(Mask::parse(text, 4));
  const std::vector<char> expected = matrix(*original);
  Mask copy = *original, assigned = Mask::parse("full", 9);
  assigned = *original;
  EXPECT_NE(copy.rule().document_starts, original->rule().document_starts);
  EXPECT_EQ(copy.rule().block_columns, assigned.rule().block_columns);  // it may have half a GiB
  const Mask moved = std::move(*original);
  original.reset();
  for (const Mask* mask : {&std::as_const(copy), &std::as_const(assigned), &moved}) {
    EXPECT_EQ(matrix(*mask), expected);
    EXPECT_EQ(mask->to_string(), text);
    EXPECT_EQ(mask->rule().document_starts, mask->document_starts().data());
    EXPECT_EQ(mask->rule().block_row_starts, mask->block_row_starts().data());
    EXPECT_EQ(mask->rule().block_columns, mask->block_columns().data());
  }
}

TEST(Mask, ErrorsNameFieldTermAndRemedy) {
  const auto parse_error = [](const std::string& text, std::int64_t tokens) {
    return error_text([&] { Mask::parse(text, tokens, "train.mask"); });
  };
  EXPECT_THAT(parse_error("documents:1,4", 10),
              mentions("train.mask = 'documents:1,4'", "must start at token 0"));
  EXPECT_THAT(parse_error("documents:0,4,4", 10),
              mentions("document 2 starts at 4, not behind 4", "strictly increasing"));
  EXPECT_THAT(parse_error("documents:0,7,4", 10), HasSubstr("document 2 starts at 4, not behind 7"));
  EXPECT_THAT(parse_error("documents:0,11", 10),
              mentions("starts at 11, behind the end of the sequence of 10 tokens", "longer sequence"));
  EXPECT_THAT(parse_error("documents", 10), mentions("no start offsets", "write documents:0,a,b,…"));
  EXPECT_THAT(parse_error("causal", -1), HasSubstr("a sequence of -1 tokens"));
  EXPECT_THAT(parse_error("causal", Mask::max_tokens + 1), HasSubstr("lengths from 0 to 2147483648"));
  EXPECT_THAT(parse_error("blocks:4,/nowhere/list.txt", 10),
              mentions("train.mask = 'blocks:4,/nowhere/list.txt'", "cannot open '/nowhere/list.txt'"));

  const auto join_error = [](const char* text, std::vector<std::int64_t> starts) {
    return error_text([&] { Mask::with_documents(text, 10, starts, "train.mask"); });
  };
  EXPECT_THAT(join_error("full", {0}), mentions("train.mask = 'full'", "write 'documents'"));
  EXPECT_THAT(join_error("documents:0,3", {0, 5}), HasSubstr("write 'documents' alone"));
  EXPECT_THAT(join_error("documents", {}), HasSubstr("must start at token 0"));
  EXPECT_THAT(join_error("documents", {2, 5}), HasSubstr("the documents start at 2"));
  EXPECT_THAT(join_error("documents", {0, 5, 5}), HasSubstr("strictly increasing"));
}

}  // namespace
}  // namespace annulus
