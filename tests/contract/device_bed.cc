#include "tests/contract/device_bed.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "base/assert.h"
#include "block/uring_device.h"

namespace etcfs::testing {
namespace {

// Output of a command, without the last newline; nullopt when it fails.
std::optional<std::string> output_of(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (!pipe) return std::nullopt;
  std::string out;
  char buffer[256];
  while (std::fgets(buffer, sizeof buffer, pipe)) out += buffer;
  const int status = ::pclose(pipe);
  while (!out.empty() && out.back() == '\n') out.pop_back();
  if (status != 0) return std::nullopt;
  return out;
}

}  // namespace

std::string side_name(DeviceSide side) {
  return side == DeviceSide::kSimulated ? "Simulated" : side == DeviceSide::kFile ? "File" : "Loop";
}

ImageFile::ImageFile(std::uint64_t bytes) {
  std::string name = (std::filesystem::temp_directory_path() / "etcfs-image-XXXXXX").string();
  const int fd = ::mkstemp(name.data());
  ETCFS_ASSERT(fd >= 0);
  ::close(fd);
  path_ = name;
  resize(bytes);
}

ImageFile::~ImageFile() { ::unlink(path_.c_str()); }

void ImageFile::resize(std::uint64_t bytes) {
  ETCFS_ASSERT(::truncate(path_.c_str(), static_cast<off_t>(bytes)) == 0);
}

LoopDevice::LoopDevice(const ImageFile& image) {
  const auto out = output_of("losetup --find --show " + image.path());
  if (out && out->starts_with("/dev/")) {
    path_ = *out;
  } else {
    problem_ = "no loop device can be set up here (losetup needs root)";
  }
}

LoopDevice::~LoopDevice() {
  if (!path_.empty()) output_of("losetup --detach " + path_);
}

void LoopDevice::refresh_size() { ETCFS_ASSERT(output_of("losetup --set-capacity " + path_)); }

DeviceBed::DeviceBed(DeviceSide side, std::uint64_t bytes, std::uint64_t seed) : side_(side) {
  rt::Options options;
  options.simulated = side == DeviceSide::kSimulated;
  options.seed = seed;
  runtime_ = std::make_unique<rt::Runtime>(options);
  if (side == DeviceSide::kSimulated) {
    disk_ = std::make_unique<sim::SimDisk>(*runtime_, bytes);
    return;
  }
  image_ = std::make_unique<ImageFile>(bytes);
  if (side != DeviceSide::kLoop) return;
  loop_ = std::make_unique<LoopDevice>(*image_);
  problem_ = loop_->problem();
}

DeviceBed::~DeviceBed() = default;

void DeviceBed::grow(std::uint64_t bytes) {
  if (disk_) return disk_->grow(bytes);
  image_->resize(bytes);
  if (loop_) loop_->refresh_size();
}

void DeviceBed::run(const std::function<void(block::Device&)>& body) {
  rt::Group group(*runtime_, "test");
  bool ended = false;
  group.spawn([&] {
    std::unique_ptr<block::Device> device;
    if (disk_) {
      device = std::make_unique<sim::SimDevice>(*disk_, "a");
    } else {
      block::UringDevice::Options options;
      options.allow_file = side_ == DeviceSide::kFile;
      auto opened = block::UringDevice::open(loop_ ? loop_->path() : image_->path(), options);
      ASSERT_TRUE(opened) << reason_name(opened.error());
      device = std::move(*opened);
    }
    body(*device);
    device.reset();
    ended = true;
  });
  rt::Group waiter(*runtime_, "waiter");
  waiter.spawn([&] {
    group.wait();
    runtime_->stop();
  });
  runtime_->run();
  EXPECT_TRUE(ended);
}

}  // namespace etcfs::testing
