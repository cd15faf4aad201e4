// Block 0: a line of text for people, zeros, and at byte 512 the 32 random bytes. The hash is over
// the whole block.
#include "block/identity.h"

#include <openssl/evp.h>

#include <cstring>

#include "base/assert.h"
#include "rt/rt.h"

namespace etcfs::block {
namespace {

constexpr std::string_view kText = "EtcFS device, format 1. Its metadata is in etcd.\n";
constexpr std::size_t kTokenAt = 512, kTokenBytes = 32;

std::string_view text_of(const Buffer& block) {
  return {reinterpret_cast<const char*>(block.data()), block.size()};
}

}  // namespace

std::string sha256(std::string_view bytes) {
  std::string out(32, '\0');
  unsigned length = 0;
  const int ok =
      ::EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(out.data()),
                   &length, ::EVP_sha256(), nullptr);
  ETCFS_ASSERT(ok == 1 && length == out.size());
  return out;
}

Result<std::string> write_identity(Device& device) {
  Buffer block = Buffer::allocate(kBlockBytes);
  std::memset(block.data(), 0, block.size());
  std::memcpy(block.data(), kText.data(), kText.size());
  for (std::size_t i = 0; i < kTokenBytes; i += 8) {
    const std::uint64_t word = rt::Runtime::current().random();
    std::memcpy(block.data() + kTokenAt + i, &word, sizeof word);
  }
  const std::span<const std::byte> piece = block.span();
  ETCFS_CHECK(device.write(0, {&piece, 1}));
  ETCFS_CHECK(device.flush());
  Buffer back = Buffer::allocate(kBlockBytes);
  ETCFS_CHECK(device.read(0, back.span()));
  if (text_of(back) != text_of(block)) return Reason::kIo;
  return sha256(text_of(block));
}

Result<void> verify_device(Device& device, const meta::Super& super) {
  if (device.size_bytes() / kBlockBytes < super.device_blocks) return Reason::kWrongDevice;
  Buffer block = Buffer::allocate(kBlockBytes);
  ETCFS_CHECK(device.read(0, block.span()));
  if (sha256(text_of(block)) != super.identity_hash) return Reason::kWrongDevice;
  return {};
}

}  // namespace etcfs::block
