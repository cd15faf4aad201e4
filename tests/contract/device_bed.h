// What the tests of the Device seam stand on: a runtime and a device of one of three kinds.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "block/device.h"
#include "rt/rt.h"
#include "sim/fakes/sim_device.h"

namespace etcfs::testing {

enum class DeviceSide { kSimulated, kFile, kLoop };
std::string side_name(DeviceSide side);

// A sparse file in the directory for temporary files; gone with the object.
class ImageFile {
 public:
  explicit ImageFile(std::uint64_t bytes);
  ~ImageFile();
  const std::string& path() const { return path_; }
  void resize(std::uint64_t bytes);

 private:
  std::string path_;
};

// A loop device on an image; path() is empty where none can be set up.
class LoopDevice {
 public:
  explicit LoopDevice(const ImageFile& image);
  ~LoopDevice();
  const std::string& path() const { return path_; }
  const std::string& problem() const { return problem_; }
  void refresh_size();

 private:
  std::string path_, problem_;
};

class DeviceBed {
 public:
  DeviceBed(DeviceSide side, std::uint64_t bytes, std::uint64_t seed);
  ~DeviceBed();
  const std::string& problem() const { return problem_; }     // why this side cannot be tested here
  void run(const std::function<void(block::Device&)>& body);  // in a fiber
  void grow(std::uint64_t bytes);

 private:
  const DeviceSide side_;
  std::string problem_;
  std::unique_ptr<ImageFile> image_;
  std::unique_ptr<LoopDevice> loop_;
  std::unique_ptr<rt::Runtime> runtime_;
  std::unique_ptr<sim::SimDisk> disk_;
};

}  // namespace etcfs::testing
