#pragma once

/// The component training: a run as its configuration says, packing text, and reading checkpoints.
#include <annulus/base/kokkos/start.hpp>
#include <annulus/training/checkpoint/reader.hpp>
#include <annulus/training/data/packer.hpp>
#include <annulus/training/data/tokenizer.hpp>
#include <annulus/training/run/config.hpp>
#include <annulus/training/run/trainer.hpp>
