#include "plan/validate/contents.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace annulus::plan::validation {
namespace {

bool holds(const Share& share, ComputeId compute) {
  return std::ranges::binary_search(share.computes, compute);
}

/// The first number that is in both; both are increasing.
std::optional<ComputeId> first_common(const std::vector<ComputeId>& a, const std::vector<ComputeId>& b) {
  if (a.empty() || b.empty() || a.back() < b.front() || b.back() < a.front()) return std::nullopt;
  const auto& few = a.size() < b.size() ? a : b;
  const auto& many = a.size() < b.size() ? b : a;
  auto from = many.begin();
  for (const ComputeId compute : few) {
    from = std::lower_bound(from, many.end(), compute);
    if (from == many.end()) break;
    if (*from == compute) return compute;
  }
  return std::nullopt;
}

/// Both are increasing and have nothing in common.
void merge(std::vector<ComputeId>& into, std::vector<ComputeId>&& from) {
  if (into.size() < from.size()) std::swap(into, from);
  if (from.empty()) return;
  const auto old = static_cast<std::ptrdiff_t>(into.size());
  const bool behind = into.back() < from.front();
  into.insert(into.end(), from.begin(), from.end());
  if (!behind) std::inplace_merge(into.begin(), into.begin() + old, into.end());
}

}  // namespace

bool Sum::add(const Contribution& contribution) {
  return !add(Share{contribution.where, {contribution.compute}});
}

std::optional<ComputeId> Sum::add(Sum&& other) {
  for (Share& share : other.shares_) {
    if (const auto twice = add(std::move(share))) return twice;
  }
  return std::nullopt;
}

std::optional<ComputeId> Sum::add(Share&& share) {
  Share* same = nullptr;
  for (Share& held : shares_) {
    if (!overlap(held.where, share.where)) continue;
    if (const auto twice = first_common(held.computes, share.computes)) return twice;
    if (held.where == share.where) same = &held;
  }
  if (same == nullptr) {
    shares_.push_back(std::move(share));
  } else {
    merge(same->computes, std::move(share.computes));
  }
  return std::nullopt;
}

Sum Sum::part(const Rectangle& where) const {
  Sum part;
  for (const Share& held : shares_) {
    const Rectangle common = intersection(held.where, where);
    if (!common.empty()) part.add(Share{common, held.computes});
  }
  return part;
}

std::int64_t Sum::held(const Contribution& contribution) const {
  std::int64_t area = 0;
  for (const Share& held : shares_) {
    const Rectangle common = intersection(held.where, contribution.where);
    if (!common.empty() && holds(held, contribution.compute)) area += common.area();
  }
  return area;
}

void Sum::resize(RowRange whole, RowRange other) {
  for (Share& held : shares_) {
    if (held.where.rows == whole) held.where.rows = other;
  }
}

bool Sum::shares_equal(const Sum& other) const {
  return std::ranges::equal(shares_, other.shares_, [](const Share& a, const Share& b) {
    return a.where == b.where && a.computes == b.computes;
  });
}

bool Sum::covers(const Sum& other) const {
  return std::ranges::all_of(other.shares_, [this](const Share& share) {
    return std::ranges::all_of(share.computes, [&](ComputeId compute) {
      return held({compute, share.where}) == share.where.area();
    });
  });
}

const Use* Buffer::use_of(const Rectangle& where, bool landing_only) const {
  const auto touches = [&](const Use& use) { return overlap(use.where, where); };
  if (const auto found = std::ranges::find_if(landings, touches); found != landings.end()) return &*found;
  if (landing_only) return nullptr;
  const auto found = std::ranges::find_if(sends, touches);
  return found == sends.end() ? nullptr : &*found;
}

}  // namespace annulus::plan::validation
