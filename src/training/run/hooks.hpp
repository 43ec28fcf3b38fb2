#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/training/run/trainer.hpp>

#include "attention/comm/agreement.hpp"
#include "training/run/config/attention_inputs.hpp"
#include "training/run/state/flat_buffer.hpp"

namespace annulus::training {

/// What tests put in the place of a rank's own program, hardware and plans, and do to its state.
struct Hooks {
  comm::Facts program = comm::program_facts();
  std::optional<comm::Facts> hardware;  ///< in the place of the processor; without it what the machine says
  MakePlan make_plan;                   ///< in the place of plan::make_plan; without it that
  /// memory.offload_optimizer on a CPU run: its memory stands for the device's.
  bool offload_on_cpu = false;
  /// Bytes that are free, in the place of what the machine says.
  std::optional<std::int64_t> host_memory, device_memory;
  /// A CPU run rehearses, too (rehearse).
  bool rehearse_on_cpu = false;
  /// Changes how a rank runs attention.
  std::function<void(executor::Settings&, int rank)> attention;
  /// Called after each optimizer step, before anything looks at its result, with what this rank itself holds
  /// (ModelState::held_buffers).
  std::function<void(std::int64_t step, const Buffers&)> updated;
  /// Called in an optimizer step, before AdamW changes anything.
  std::function<void(std::int64_t step, int rank)> gated;
  /// Called where a checkpoint is written, a thread beside training or not, before each block of it. What it
  /// throws is an error of the disk.
  std::function<void(int rank)> writing;
};

/// Trains with hooks; no program can reach this.
Outcome train(comm::Communicator& world, Config config, const ResumePolicy& resume, const DumpRequest& dump,
              const Hooks& hooks);

}  // namespace annulus::training
