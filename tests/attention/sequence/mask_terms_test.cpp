#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "attention/sequence/mask_terms.hpp"
#include "support/error_text.hpp"

namespace annulus::detail {
namespace {

using testing::HasSubstr;

std::string rejected(const std::string& text) {
  return error_text([&] { parse_mask_terms(text, "train.mask"); });
}

TEST(MaskTerms, ReadsEveryTerm) {
  EXPECT_TRUE(parse_mask_terms("full", "mask").full);
  const MaskTerms terms =
      parse_mask_terms("causal+window:3,0+dilated:4,2+documents:0,5,9+blocks:64,dir/a:b,c.txt", "mask");
  EXPECT_FALSE(terms.full);
  EXPECT_TRUE(terms.causal);
  ASSERT_TRUE(terms.window && terms.dilated && terms.documents && terms.blocks);
  EXPECT_EQ(terms.window->left, 3);
  EXPECT_EQ(terms.window->right, 0);
  EXPECT_EQ(terms.dilated->width, 4);
  EXPECT_EQ(terms.dilated->distance, 2);
  EXPECT_EQ(terms.documents->starts, (std::vector<std::int64_t>{0, 5, 9}));
  EXPECT_EQ(terms.blocks->size, 64);
  EXPECT_EQ(terms.blocks->file, "dir/a:b,c.txt");
  EXPECT_TRUE(parse_mask_terms("documents", "mask").documents->starts.empty());
}

TEST(MaskTerms, TextRoundTrip) {
  for (const char* text :
       {"full", "causal", "window:0,7", "dilated:1,1", "documents", "documents:0", "documents:0,3,9",
        "blocks:128,mask.txt", "causal+window:3,9+dilated:2,5+documents:0,4+blocks:1,x"})
    EXPECT_EQ(to_string(parse_mask_terms(text, "mask")), text);
  EXPECT_EQ(to_string(parse_mask_terms("documents:0+causal", "mask")), "causal+documents:0");
}

TEST(MaskTerms, ErrorsNameFieldTermAndRemedy) {
  EXPECT_THAT(rejected("causal+windw:3,4"),
              mentions("train.mask = 'causal+windw:3,4'", "the term 'windw:3,4' is no mask", "window:L,R"));
  for (const char* text : {"", "+", "causal+", "Causal", " causal", "causal:", "full:1"})
    EXPECT_THAT(rejected(text), AllOf(HasSubstr("is no mask: "), HasSubstr("use full, causal"))) << text;
  EXPECT_THAT(rejected("casual"), HasSubstr("did you mean 'causal'?"));
  EXPECT_THAT(rejected("document:0,3"), HasSubstr("did you mean 'documents'?"));
  for (const char* text :
       {"window", "window:", "window:3", "window:3,", "window:-1,0", "window:0,-1", "window:3,4,5",
        "window:a,b", "window:1.5,0", "window:99999999999999999999,0", "window: 3,4"})
    EXPECT_THAT(rejected(text), mentions(std::string("the term '") + text + "'", "L,R ≥ 0", "window:128,0"));
  for (const char* text :
       {"dilated", "dilated:4", "dilated:0,2", "dilated:2,0", "dilated:-3,1", "dilated:x,1"})
    EXPECT_THAT(rejected(text), mentions(std::string("the term '") + text + "'", "W,D ≥ 1"));
  EXPECT_THAT(rejected("documents:0,x,9"), HasSubstr("start offset 'x', which is no whole number"));
  EXPECT_THAT(rejected("documents:"), HasSubstr("start offset ''"));
  for (const char* text :
       {"blocks", "blocks:64", "blocks:64,", "blocks:,file", "blocks:0,file", "blocks:-1,file"})
    EXPECT_THAT(rejected(text), HasSubstr("blocks:128,mask.txt"));
}

TEST(MaskTerms, WhatDoesNotJoinIsSaid) {
  for (const char* text : {"full+causal", "causal+full", "documents+full"})
    EXPECT_THAT(rejected(text), HasSubstr("the term 'full' does not join"));
  for (const char* text :
       {"full+full", "causal+causal", "window:1,2+window:3,4", "dilated:1,2+causal+dilated:1,2",
        "documents+documents:0", "blocks:1,a+blocks:2,b"})
    EXPECT_THAT(rejected(text), mentions("second one of its kind", "as one term")) << text;
  EXPECT_THAT(rejected("blocks:64,a+b.txt"), HasSubstr("the term 'b.txt'"));
}

TEST(MaskTerms, LongTextsAreQuotedInPart) {
  std::string documents = "documents:0";
  for (int start = 1; start < 5000; ++start) documents.append(",").append(std::to_string(start));
  EXPECT_THAT(rejected(documents + "+causl"),
              mentions("documents:0,1,2,", "…", "the term 'causl' is no mask"));
  EXPECT_LT(rejected(documents + ",x").size(), 500u);
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "ü";
  umlauts.insert(0, 1, 'x');  // byte 120 is the second one of a character
  EXPECT_EQ(abbreviated(umlauts), umlauts.substr(0, 119) + "…");
  EXPECT_EQ(abbreviated("causal"), "causal");
}

}  // namespace
}  // namespace annulus::detail
