#include "prediction/simulator/selected.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include <annulus/attention/sequence/layout.hpp>
#include <annulus/base/division.hpp>
#include <annulus/base/error.hpp>

#include "attention/sequence/pair_count.hpp"

namespace annulus::simulator {

namespace {

/// The rows of `map` at positions [begin, end).
PositionMap rows_between(const PositionMap& map, RowRange positions) {
  return map.slice({map.rows_below(positions.begin), map.rows_below(positions.end)});
}

void check_shape(const SelectedBlocks& selection, const plan::Problem& problem) {
  require(problem.mask.tokens() == selection.tokens(),
          "a selection of {} tokens was given for a sequence of {}: give the length of the selection",
          selection.tokens(), problem.mask.tokens());
  require(problem.heads % selection.lists() == 0,
          "{} heads cannot share a selection of {} lists: give a multiple of them", problem.heads,
          selection.lists());
}

}  // namespace

SelectedBlocks::SelectedBlocks(std::int64_t tokens, std::int64_t block,
                               const std::vector<std::vector<std::int64_t>>& distances)
    : SelectedBlocks(tokens, block) {
  for (std::vector<std::int64_t> of_list : distances) {
    std::ranges::sort(of_list, std::greater<>());  // columns of a row increase
    add_list(block, [&](int, std::int64_t row) {
      std::vector<std::int64_t> columns;
      for (const std::int64_t distance : of_list)
        if (distance <= row) columns.push_back(row - distance);
      return columns;
    });
  }
}

SelectedBlocks SelectedBlocks::of_rows(std::int64_t tokens, std::int64_t block, std::int64_t row_tokens,
                                       int lists, const Columns& columns) {
  SelectedBlocks made(tokens, row_tokens);
  for (int list = 0; list < lists; ++list) made.add_list(block, columns);
  return made;
}

void SelectedBlocks::add_list(std::int64_t block, const Columns& columns) {
  const int number = lists();
  List& list = lists_.emplace_back();
  for (std::int64_t row = 0; row < ceil_divide(tokens_, row_tokens_); ++row) {
    const std::int64_t start = std::ssize(list.keys);
    list.starts.push_back(start);
    for (const std::int64_t column : columns(number, row)) {
      const RowRange keys{column * block, std::min((column + 1) * block, tokens_)};
      if (std::ssize(list.keys) > start && list.keys.back().end == keys.begin)
        list.keys.back().end = keys.end;
      else
        list.keys.push_back(keys);
    }
  }
  list.starts.push_back(std::ssize(list.keys));
}

template <class Visit>
void SelectedBlocks::visit_ranges(const List& list, const PositionMap& q, std::int64_t from,
                                  const Visit& visit) const {
  for (std::int64_t i = 0, next = 0; i < q.count; i = next) {
    const std::int64_t row = q(i) / row_tokens_;
    next = q.rows_below((row + 1) * row_tokens_);
    const PositionMap queries = q.slice({i, next});
    const auto end = list.keys.begin() + list.starts[row + 1];
    for (auto at = std::upper_bound(list.keys.begin() + list.starts[row], end, from,
                                    [](std::int64_t position, RowRange keys) { return position < keys.end; });
         at != end; ++at)
      visit(queries, *at);
  }
}

std::int64_t SelectedBlocks::list_pairs(const List& list, const PositionMap& q, const PositionMap& k) const {
  if (q.empty() || k.empty()) return 0;
  MaskRule causal;
  causal.tokens = tokens_;
  causal.right = 0;
  std::int64_t pairs = 0;
  visit_ranges(list, q, k.front(), [&](const PositionMap& queries, RowRange range) {
    const PositionMap keys = rows_between(k, range);
    pairs += range.end <= queries.front() + 1
                 ? queries.count * keys.count
                 : detail::count_pairs(causal, queries, keys, std::numeric_limits<std::int64_t>::max());
  });
  return pairs;
}

std::vector<bool> SelectedBlocks::keys(int list, const PositionMap& q) const {
  std::vector<std::int64_t> change(static_cast<std::size_t>(tokens_ + 1));
  visit_ranges(lists_[static_cast<std::size_t>(list)], q, 0, [&](const PositionMap& queries, RowRange keys) {
    const std::int64_t end = std::min(keys.end, queries.back() + 1);
    if (end <= keys.begin) return;
    ++change[keys.begin];
    --change[end];
  });
  std::vector<bool> has(static_cast<std::size_t>(tokens_));
  std::int64_t queries = 0;
  for (std::int64_t key = 0; key < tokens_; ++key) has[key] = (queries += change[key]) > 0;
  return has;
}

std::int64_t SelectedBlocks::pairs(const plan::Problem& problem, const PositionMap& q, const PositionMap& k,
                                   plan::HeadRange heads) const {
  check_shape(*this, problem);
  const int group = problem.heads / lists();
  std::int64_t pairs = 0;
  for (int head = heads.begin; head < heads.end;) {  // heads of a list have the same pairs
    const int next = std::min((head / group + 1) * group, heads.end);
    pairs += (next - head) * list_pairs(lists_[static_cast<std::size_t>(head / group)], q, k);
    head = next;
  }
  return pairs;
}

std::int64_t SelectedBlocks::pairs(const plan::Problem& problem, const plan::Compute& compute) const {
  return pairs(problem, problem.shard(compute.q_shard).slice(compute.q_rows),
               problem.shard(compute.kv_shard).slice(compute.kv_rows), compute.heads);
}

double SelectedBlocks::density() const {
  const PositionMap all = Layout().shard(tokens_, 1, 0);
  double selected = 0;
  for (const List& list : lists_) selected += static_cast<double>(list_pairs(list, all, all));
  const auto tokens = static_cast<double>(tokens_);
  return selected / (0.5 * tokens * (tokens + 1) * lists());
}

Selected SelectedBlocks::selected() const {
  return {density(), [this](const plan::Problem& problem, const PositionMap& q, const PositionMap& k,
                            plan::HeadRange heads) { return pairs(problem, q, k, heads); }};
}

namespace {

/// The keys that ranks of a plan may see and need.
class KeyNeeds {
 public:
  KeyNeeds(const plan::Plan& plan, const SelectedBlocks& selection) : plan_(plan), selection_(selection) {
    const plan::Problem& problem = plan.problem;
    const auto needs = static_cast<std::size_t>(problem.ranks()) * problem.kv_heads;
    needed_.assign(needs, std::vector<bool>(static_cast<std::size_t>(selection.tokens())));
    last_.assign(needs, -1);
    for (int rank = 0; rank < problem.ranks(); ++rank)
      for (int step = 0; step < plan.steps; ++step)
        for (const plan::Compute& compute : plan.step(rank, step).computes) add(rank, compute);
    needed_onward_ = needed_;
    pass_on(needed_onward_);
    for (const std::int64_t last : last_) {
      std::vector<bool>& visible = visible_onward_.emplace_back(static_cast<std::size_t>(selection.tokens()));
      std::fill_n(visible.begin(), last + 1, true);
    }
    pass_on(visible_onward_);
  }

  ReceivedKeys count() const {
    ReceivedKeys found;
    for (int rank = 0; rank < plan_.problem.ranks(); ++rank)
      for (int step = 0; step < plan_.steps; ++step)
        for (const plan::Transfer& t : plan_.step(rank, step).receives)
          if (t.slice.tensor == plan::Tensor::k) count(rank, t.slice, found);
    return found;
  }

 private:
  using Marks = std::vector<std::vector<bool>>;                      // by rank and kv head, by position
  using Queries = std::tuple<int, std::int64_t, std::int64_t, int>;  // shard, rows, list

  std::size_t index(int rank, int kv_head) const {
    return static_cast<std::size_t>(rank) * plan_.problem.kv_heads + kv_head;
  }

  void add(int rank, const plan::Compute& compute) {
    const plan::Problem& problem = plan_.problem;
    const PositionMap q = problem.shard(compute.q_shard).slice(compute.q_rows),
                      k = problem.shard(compute.kv_shard).slice(compute.kv_rows);
    if (q.empty() || k.empty()) return;
    std::pair<int, int> before = {-1, -1};
    for (int head = compute.heads.begin; head < compute.heads.end; ++head) {
      const int list = head / (problem.heads / selection_.lists()), kv_head = head / problem.group();
      if (std::exchange(before, {list, kv_head}) == std::pair(list, kv_head)) continue;
      const std::size_t of = index(rank, kv_head);
      last_[of] = std::max(last_[of], q.back());
      const std::vector<bool>& keys =
          keys_of({compute.q_shard, compute.q_rows.begin, compute.q_rows.end, list}, q);
      for (std::int64_t row = 0; row < k.count; ++row)
        if (keys[k(row)]) needed_[of][k(row)] = true;
    }
  }

  /// Keys that some query of a step has; a rank computes with the same queries in one step after the other,
  /// so they are kept.
  const std::vector<bool>& keys_of(const Queries& queries, const PositionMap& q) {
    if (recent_.size() > 256) recent_.clear();
    const auto [at, is_new] = recent_.try_emplace(queries);
    if (is_new) at->second = selection_.keys(std::get<3>(queries), q);
    return at->second;
  }

  /// Adds what receivers have to what their senders have, until nothing is added: the last step first, so
  /// that mostly one round is enough.
  void pass_on(Marks& marks) const {
    for (bool any = true; any;) {
      any = false;
      for (int step = plan_.steps - 1; step >= 0; --step)
        for (int rank = 0; rank < plan_.problem.ranks(); ++rank)
          for (const plan::Transfer& t : plan_.step(rank, step).sends) {
            if (t.slice.tensor != plan::Tensor::k) continue;
            const PositionMap rows = plan_.problem.shard(t.slice.owner).slice(t.slice.rows);
            for (int head = t.slice.heads.begin; head < t.slice.heads.end; ++head) {
              std::vector<bool>& of_sender = marks[index(rank, head)];
              const std::vector<bool>& of_receiver = marks[index(t.peer, head)];
              for (std::int64_t row = 0; row < rows.count; ++row) {
                if (!of_receiver[rows(row)] || of_sender[rows(row)]) continue;
                of_sender[rows(row)] = any = true;
              }
            }
          }
    }
  }

  void count(int rank, const plan::TensorSlice& slice, ReceivedKeys& found) const {
    struct Row {
      bool visible = false, needed = false, visible_onward = false, needed_onward = false;

      void add_to(ReceivedRows& rows) const {
        ++rows.received;
        rows.visible += visible ? 1 : 0;
        rows.unneeded += visible && !needed ? 1 : 0;
        rows.visible_onward += visible_onward ? 1 : 0;
        rows.unneeded_onward += visible_onward && !needed_onward ? 1 : 0;
      }
    };
    const PositionMap rows = plan_.problem.shard(slice.owner).slice(slice.rows);
    for (std::int64_t row = 0; row < rows.count; ++row) {
      const std::int64_t key = rows(row);
      Row any;
      for (int head = slice.heads.begin; head < slice.heads.end; ++head) {
        const std::size_t of = index(rank, head);
        const Row one = {key <= last_[of], needed_[of][key], visible_onward_[of][key],
                         needed_onward_[of][key]};
        one.add_to(found.of_kv_heads);
        any = {any.visible || one.visible, any.needed || one.needed, any.visible_onward || one.visible_onward,
               any.needed_onward || one.needed_onward};
      }
      any.add_to(found.of_all_heads);
    }
  }

  const plan::Plan& plan_;
  const SelectedBlocks& selection_;
  std::vector<std::int64_t> last_;  // query that the rank computes
  Marks needed_, needed_onward_, visible_onward_;
  std::map<Queries, std::vector<bool>> recent_;
};

}  // namespace

ReceivedKeys count_received_keys(const plan::Plan& plan, const SelectedBlocks& selection) {
  check_shape(selection, plan.problem);
  return KeyNeeds(plan, selection).count();
}

}  // namespace annulus::simulator
