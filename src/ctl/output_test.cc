#include "ctl/output.h"

#include <gtest/gtest.h>

namespace etcfs::ctl {
namespace {

TEST(Json, WritesNestedDocuments) {
  Json json;
  json.begin_object().field("a", "x\"\\\n").field("n", std::uint64_t{18446744073709551615ull});
  json.field("yes", true).null_field("none").begin_array("list").item("1").item("2").end();
  json.begin_array("empty").end().begin_object("o").field("no", false).end().end();
  EXPECT_EQ(json.text(),
            "{\n  \"a\": \"x\\\"\\\\\\u000a\",\n  \"n\": 18446744073709551615,\n  \"yes\": true,\n"
            "  \"none\": null,\n  \"list\": [\n    \"1\",\n    \"2\"\n  ],\n  \"empty\": [],\n"
            "  \"o\": {\n    \"no\": false\n  }\n}\n");
}

TEST(Json, WritesWhatIsNotUtf8AsEscapes) {
  auto text = [](std::string_view value) { return Json().begin_array().item(value).end().text(); };
  EXPECT_EQ(text("\xc3\xa4"), "[\n  \"\xc3\xa4\"\n]\n");
  EXPECT_EQ(text("\xff"), "[\n  \"\\\\xff\"\n]\n");
  EXPECT_EQ(text("\xc0\x80"), "[\n  \"\\\\xc0\\\\x80\"\n]\n");             // overlong
  EXPECT_EQ(text("\xed\xa0\x80"), "[\n  \"\\\\xed\\\\xa0\\\\x80\"\n]\n");  // a surrogate
  EXPECT_EQ(text("\xe2\x82"), "[\n  \"\\\\xe2\\\\x82\"\n]\n");             // cut off
}

TEST(Output, Table) {
  Table table({"NAME", "N"});
  table.row({"a", "10"});
  table.row({"longer", ""});
  EXPECT_EQ(table.text(), "NAME    N\na       10\nlonger\n");
}

TEST(Output, ParseBytes) {
  EXPECT_EQ(parse_bytes("4096"), 4096u);
  EXPECT_EQ(parse_bytes("64K"), 65536u);
  EXPECT_EQ(parse_bytes("16m"), 16u << 20);
  EXPECT_EQ(parse_bytes("16MiB"), 16u << 20);
  EXPECT_EQ(parse_bytes("1.5G"), 3ull << 29);
  EXPECT_EQ(parse_bytes("2T"), 2ull << 40);
  EXPECT_EQ(parse_bytes("10B"), 10u);
  for (const char* bad :
       {"", "K", "-1", "1.5", "1X", "1KK", "12 M", "1e3", "16E", "nan", "0x10", "1MB"})
    EXPECT_FALSE(parse_bytes(bad)) << bad;
}

TEST(Output, HumanBytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(16 * kMiB), "16.0 MiB");
  EXPECT_EQ(human_bytes(1536 * kGiB), "1.5 TiB");
}

TEST(Output, TimesAndIdentifiers) {
  EXPECT_EQ(utc({0, 0}), "1970-01-01T00:00:00Z");
  EXPECT_EQ(utc({-1, 999'999'999}), "1969-12-31T23:59:59Z");
  EXPECT_EQ(uuid_text("0123456789abcdef"), "30313233-3435-3637-3839-616263646566");
}

}  // namespace
}  // namespace etcfs::ctl
