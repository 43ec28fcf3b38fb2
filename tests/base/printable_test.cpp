#include <annulus/base/printable.hpp>

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace annulus
