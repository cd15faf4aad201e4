// Result<T>: a value or the Reason why there is none. Members are named as in std::expected.
// An error is never read as "absent": absence is a value (std::optional) or the reason kNotFound.
#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "base/assert.h"

namespace etcfs {

enum class Reason : int {
#define ETCFS_ERROR(name, err, text) name,
#include "base/errors.def"
#undef ETCFS_ERROR
};

std::string_view reason_name(Reason reason);
std::string_view reason_text(Reason reason);
int reason_errno(Reason reason);

struct Err {
  Reason reason;
  friend bool operator==(Err, Err) = default;
};

template <class T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit as in expected
  Result(Err e) : v_(std::in_place_index<1>, e) {}                   // NOLINT
  Result(Reason r) : v_(std::in_place_index<1>, Err{r}) {}           // NOLINT

  bool has_value() const { return v_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& value() & { return check(), std::get<0>(v_); }
  const T& value() const& { return check(), std::get<0>(v_); }
  T&& value() && { return check(), std::get<0>(std::move(v_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  Reason error() const {
    ETCFS_ASSERT(!has_value());
    return std::get<1>(v_).reason;
  }
  T value_or(T other) const& { return has_value() ? std::get<0>(v_) : std::move(other); }

 private:
  void check() const { ETCFS_ASSERT(has_value()); }
  std::variant<T, Err> v_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  Result() = default;
  Result(Err e) : e_(e) {}          // NOLINT
  Result(Reason r) : e_(Err{r}) {}  // NOLINT
  bool has_value() const { return !e_; }
  explicit operator bool() const { return has_value(); }
  Reason error() const {
    ETCFS_ASSERT(e_.has_value());
    return e_->reason;
  }

 private:
  std::optional<Err> e_;
};

}  // namespace etcfs

// Leaves the function with the error of `expr`; `var` is bound to its value otherwise.
#define ETCFS_CONCAT_(a, b) a##b
#define ETCFS_CONCAT(a, b) ETCFS_CONCAT_(a, b)
#define ETCFS_TRY(var, expr)                                          \
  auto ETCFS_CONCAT(try_, __LINE__) = (expr);                         \
  if (!ETCFS_CONCAT(try_, __LINE__))                                  \
    return ::etcfs::Err{ETCFS_CONCAT(try_, __LINE__).error()};        \
  var = std::move(*ETCFS_CONCAT(try_, __LINE__))
#define ETCFS_CHECK(expr)                                             \
  do {                                                                \
    if (auto try_result = (expr); !try_result)                        \
      return ::etcfs::Err{try_result.error()};                        \
  } while (0)
