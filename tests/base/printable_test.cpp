#include <gtest/gtest.h>

#include "base/printable.hpp"

namespace annulus {
namespace {

TEST(Printable, LeavesWords) {
  for (const char* text : {"", "model.layers.0.weight", "ä – ∇ 層 😀", "'a b'\\n"}) {
    EXPECT_EQ(printable(text), text);
    EXPECT_EQ(printable_message(text), text);
  }
}

TEST(Printable, ShowsWhatTerminalsTakeForCommands) {
  EXPECT_EQ(printable("a\x1b[2Jb\r\t\x7f"), "a\\x1b[2Jb\\x0d\\x09\\x7f");
  EXPECT_EQ(printable("a\nb"), "a\\nb");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b2J");  // CSI as U+009B
  EXPECT_EQ(printable("\xe2\x80\xae"
                      "abc"),
            "\\xe2\\x80\\xaeabc");  // turns the direction of writing
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
}

TEST(Printable, ShowsBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("\x9b"
                      "2J"),
            "\\x9b2J");
  EXPECT_EQ(printable("\xc3"), "\\xc3");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");           // an overlong "/"
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // half a pair
  EXPECT_EQ(printable("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");
}

TEST(PrintableMessage, MarksLinesThatItHasNotBegun) {
  EXPECT_EQ(printable_message("cannot open 'a\n12:00:00 info all is well\x1b': no"),
            "cannot open 'a\n    12:00:00 info all is well\\x1b': no");
}

TEST(PrintableMessage, LeavesOutTheMiddleOfALongOne) {
  for (const std::string unit : {"x", "\xc3\xbc", "\xe4\xb8\xad", "\xf0\x9f\x98\x80", "\xbf"})
    for (const std::size_t more : {0, 1, 2, 3}) {
      std::string value;
      while (value.size() < 500'000) value += unit;
      const std::string shown = printable_message("'a.toml', line 3: " + std::string(more, ' ') + value +
                                                  " is no number: write one");
      EXPECT_LT(shown.size(), 70'000u);
      EXPECT_TRUE(shown.starts_with("'a.toml', line 3: "));
      EXPECT_TRUE(shown.ends_with(" is no number: write one"));
      EXPECT_NE(shown.find(" bytes are left out] "), std::string::npos);
      if (unit != "\xbf") {
        EXPECT_EQ(shown.find("\\x"), std::string::npos) << "a character was cut";
      }
    }
  EXPECT_EQ(printable_message(std::string(16384, 'x')), std::string(16384, 'x'));
}

}  // namespace
}  // namespace annulus
