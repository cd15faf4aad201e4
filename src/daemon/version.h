#pragma once

namespace etcfs::daemon {
inline constexpr const char* kVersion = "0.1.0";
}
