#include "attention/executor/buffers.hpp"

#include <algorithm>
#include <utility>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/base/division.hpp>

#include "attention/executor/proof/program.hpp"
#include "attention/kernels/mask_on.hpp"
#include "attention/kernels/runs_on.hpp"
#include "attention/sequence/balanced_cut.hpp"

namespace annulus::executor {

namespace {

constexpr std::size_t buffer_alignment = 256;

/// A buffer of so many bytes in each of the passes.
struct PassBuffer {
  std::size_t* offset;
  std::size_t forward, backward;
  bool of_both() const { return forward > 0 && backward > 0; }
};

std::size_t element(const std::vector<std::size_t>& of, std::size_t index) {
  return index < of.size() ? of[index] : 0;
}

std::size_t slot_bytes(const Capacity& of, std::size_t tensor, std::size_t slot, DType dtype) {
  return slot < of.slots[tensor].size() ? of.slot_bytes(static_cast<plan::Tensor>(tensor), slot, dtype) : 0;
}

}  // namespace

ExchangeLayout exchange_layout(const PassCapacity& capacity, DType dtype) {
  const Capacity &forward = capacity.forward, &backward = capacity.backward;
  ExchangeLayout layout;
  std::vector<PassBuffer> buffers;
  for (std::size_t t = 0; t < layout.slots.size(); ++t) {
    layout.slots[t].resize(std::max(forward.slots[t].size(), backward.slots[t].size()));
    for (std::size_t slot = 1; slot < layout.slots[t].size(); ++slot)
      buffers.push_back({&layout.slots[t][slot], slot_bytes(forward, t, slot, dtype),
                         slot_bytes(backward, t, slot, dtype)});
  }
  layout.staging.resize(std::max(forward.staging.size(), backward.staging.size()));
  for (std::size_t i = 0; i < layout.staging.size(); ++i)
    buffers.push_back({&layout.staging[i], element(forward.staging, i), element(backward.staging, i)});

  const auto take = [](std::size_t& end, std::size_t bytes) {
    return std::exchange(end, end + round_up(bytes, buffer_alignment));
  };
  std::size_t both = 0;
  for (const PassBuffer& buffer : buffers)
    if (buffer.of_both()) *buffer.offset = take(both, std::max(buffer.forward, buffer.backward));
  std::size_t forward_end = both, backward_end = both;
  for (const PassBuffer& buffer : buffers) {
    if (buffer.of_both()) continue;
    *buffer.offset =
        buffer.backward > 0 ? take(backward_end, buffer.backward) : take(forward_end, buffer.forward);
  }
  layout.bytes = std::max(forward_end, backward_end);
  return layout;
}

PassCapacity capacity_for_any_rows(const Plans& plans, int rank) {
  PassCapacity capacity;
  for (const plan::Plan* const plan : plans.all()) {  // how computes are cut changes no buffer
    const Program program = make_program(*plan, rank, Cutting{});
    Capacity of_plan = program.capacity;
    std::size_t most = 0;
    std::vector<int> free_from;  // step, of each staging buffer
    for (int step = 0; step < std::ssize(program.steps); ++step)
      for (const int post : program.steps[static_cast<std::size_t>(step)].posts) {
        const Exchange& exchange = program.exchanges[static_cast<std::size_t>(post)];
        const auto take = [&](const ProgramMessage& message) {
          most = std::max(most, message.bytes);
          const auto free = std::ranges::find_if(free_from, [&](int from) { return from <= step; });
          free == free_from.end() ? free_from.push_back(exchange.wait) : void(*free = exchange.wait);
        };
        std::ranges::for_each(exchange.sends, take);
        for (const ProgramMessage& message : exchange.receives)
          if (message.staging != ProgramMessage::none) take(message);
      }
    of_plan.staging.assign(free_from.size(), most);
    // Where a mask leaves out pairs of shards, a slice stays for longer, beside one of a later step, and
    // slots that this plan leaves out may be used.
    for (std::vector<std::int64_t>& slots : of_plan.slots) {
      if (slots.size() <= 1) continue;
      slots.assign(slots.size() + 2, std::ranges::max(slots));
      slots.front() = 0;  // the caller's
    }
    capacity.of(plan->pass).cover(of_plan);
  }
  return capacity;
}

comm::ExchangeLoad exchange_load(const Plans& plans, int rank) {
  comm::ExchangeLoad most;
  for (const plan::Plan* const plan : plans.all()) {
    const Program program = make_program(*plan, rank, Cutting{});
    comm::ExchangeLoad now;
    const auto add = [&](int exchange, int sign) {
      const Exchange& of = program.exchanges[static_cast<std::size_t>(exchange)];
      for (const auto* const messages : {&of.sends, &of.receives})
        for (const ProgramMessage& message : *messages) {
          now.messages += sign;
          now.bytes += static_cast<std::size_t>(sign) * message.bytes;
        }
    };
    for (const ProgramStep& step : program.steps) {
      for (const int wait : step.waits) add(wait, -1);
      for (const int post : step.posts) add(post, 1);
      most.cover(now);
    }
  }
  return most;
}

comm::ExchangeLoad load_for_any_rows(const Plans& plans, int rank) {
  comm::ExchangeLoad load = exchange_load(plans, rank);
  load.messages *= BalancedCut::most_shared_documents;
  return load;
}

std::int64_t staging_memory(const Plans& largest, int rank) {
  return comm::staging_memory(load_for_any_rows(largest, rank));
}

std::int64_t exchange_memory(std::span<const Plans> plans, int rank, std::span<const Plans> largest) {
  std::size_t bytes = 0;
  const auto lay_out = [&](const Plans& of_sequence, const PassCapacity& capacity) {
    bytes = std::max(bytes, exchange_layout(capacity, of_sequence.forward.problem.dtype).bytes);
  };
  for (const Plans& of_sequence : largest) lay_out(of_sequence, capacity_for_any_rows(of_sequence, rank));
  for (const Plans& of_sequence : plans) {
    PassCapacity capacity;
    for (const plan::Plan* const plan : of_sequence.all())  // how computes are cut changes no buffer
      capacity.of(plan->pass).cover(make_program(*plan, rank, Cutting{}).capacity);
    lay_out(of_sequence, capacity);
  }
  return static_cast<std::int64_t>(bytes);
}

std::int64_t document_memory(const plan::Problem& problem, bool on_device) {
  const std::int64_t tokens = problem.mask.tokens();
  const bool has_runs = on_device && problem.layout.kind() == Layout::Kind::balanced;
  return attention::MaskOn<HostExec>::reserved_bytes(tokens) +
         (has_runs ? attention::RunsOn<HostExec>::reserved_bytes(tokens, problem.ranks()) : 0);
}

}  // namespace annulus::executor
