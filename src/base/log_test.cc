#include "base/log.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace etcfs::log {
namespace {

class Log : public ::testing::Test {
 protected:
  void SetUp() override {
    set_sink([this](Level level, const std::string& line) { lines_.emplace_back(level, line); });
  }
  void TearDown() override {
    set_sink({});
    set_level(Level::kInfo);
  }
  std::vector<std::pair<Level, std::string>> lines_;
};

TEST_F(Log, LineIsTheMessageAndItsFields) {
  ETCFS_LOG_INFO("lock granted", field("family", 17), field("node", "a"));
  ETCFS_LOG_WARN("plain");
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_EQ(lines_[0], std::make_pair(Level::kInfo, std::string("lock granted family=17 node=a")));
  EXPECT_EQ(lines_[1], std::make_pair(Level::kWarn, std::string("plain")));
}

TEST_F(Log, BelowTheThresholdFieldsAreNotEvenFormatted) {
  int evaluated = 0;
  ETCFS_LOG_DEBUG("x", field("n", ++evaluated));
  EXPECT_EQ(evaluated, 0);
  EXPECT_TRUE(lines_.empty());
  set_level(Level::kDebug);
  ETCFS_LOG_DEBUG("x", field("n", ++evaluated));
  EXPECT_EQ(lines_.at(0).second, "x n=1");
}

TEST_F(Log, CountsErrors) {
  const unsigned long before = error_count();
  ETCFS_LOG_WARN("not one");
  EXPECT_EQ(error_count(), before);
  ETCFS_LOG_ERROR("one");
  EXPECT_EQ(error_count(), before + 1);
}

}  // namespace
}  // namespace etcfs::log
