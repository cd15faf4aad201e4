#include "fuse/init.h"

namespace etcfs::fuse {
namespace {

// libfuse 3.14 forgets PARALLEL_DIROPS and knows no killpriv v2. Without killpriv v2 the kernel
// asks for security.capability before every write(2).
constexpr std::uint64_t kWanted =
    FUSE_ASYNC_READ | FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS | FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES |
    FUSE_PARALLEL_DIROPS | FUSE_HANDLE_KILLPRIV_V2 | FUSE_CACHE_SYMLINKS | FUSE_ASYNC_DIO |
    FUSE_MAX_PAGES | FUSE_INIT_EXT | FUSE_HAS_EXPIRE_ONLY | kInitDirectIoAllowMmap;
// Pages are dropped by notifications only; write-through only; the kernel applies the umask; no
// ACLs, no old killpriv; a handle for every open, since open counts are ours to keep.
constexpr std::uint64_t kUnwanted =
    FUSE_AUTO_INVAL_DATA | FUSE_EXPLICIT_INVAL_DATA | FUSE_WRITEBACK_CACHE | FUSE_DONT_MASK |
    FUSE_POSIX_ACL | FUSE_HANDLE_KILLPRIV | FUSE_NO_OPEN_SUPPORT | FUSE_NO_OPENDIR_SUPPORT |
    FUSE_SPLICE_READ | FUSE_SPLICE_WRITE | FUSE_SPLICE_MOVE | FUSE_EXPORT_SUPPORT |
    FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO;
constexpr std::uint16_t kMaxPages = kMaxTransfer / 4096;
constexpr unsigned kExpireMinor = 38;

}  // namespace

std::uint64_t init_flags(const fuse_init_in& in) {
  std::uint64_t flags = in.flags;
  if (flags & FUSE_INIT_EXT) flags |= static_cast<std::uint64_t>(in.flags2) << 32;
  return flags;
}

KernelFeatures features_of(const fuse_init_in& in) {
  const std::uint64_t offered = init_flags(in);
  KernelFeatures kernel;
  kernel.minor = in.minor;
  kernel.expire_entries = in.minor >= kExpireMinor && (offered & FUSE_HAS_EXPIRE_ONLY) != 0;
  kernel.killpriv_v2 = (offered & FUSE_HANDLE_KILLPRIV_V2) != 0;
  return kernel;
}

void complete_init(const fuse_init_in& in, const SessionOptions& options, fuse_init_out& out) {
  const std::uint64_t offered = init_flags(in);
  std::uint64_t flags = out.flags | static_cast<std::uint64_t>(out.flags2) << 32;
  flags |= kWanted;
  flags &= ~kUnwanted;
  switch (options.readdirplus) {
    case ReaddirPlus::kAlways:
      flags |= FUSE_DO_READDIRPLUS;
      break;
    case ReaddirPlus::kAuto:
      flags |= FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO;
      break;
    case ReaddirPlus::kNever:
      break;
  }
  flags &= offered | FUSE_BIG_WRITES;
  out.flags = static_cast<std::uint32_t>(flags);
  out.flags2 = static_cast<std::uint32_t>(flags >> 32);
  if (flags & FUSE_MAX_PAGES) out.max_pages = kMaxPages;
  out.max_background = static_cast<std::uint16_t>(options.max_background);
  out.congestion_threshold = static_cast<std::uint16_t>(options.max_background * 3 / 4);
  out.time_gran = 1;
}

}  // namespace etcfs::fuse
