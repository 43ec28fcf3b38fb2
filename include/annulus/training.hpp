#pragma once

/// The component training: data, model, optimizer, checkpoints and the run that joins them.
#include <annulus/checkpoint/folder.hpp>
#include <annulus/checkpoint/reader.hpp>
#include <annulus/checkpoint/writer.hpp>
#include <annulus/core/threads.hpp>
#include <annulus/data/dataset.hpp>
#include <annulus/data/loader.hpp>
#include <annulus/data/packer.hpp>
#include <annulus/data/tokenizer.hpp>
#include <annulus/forecast/update_memory.hpp>
#include <annulus/forecast/update_time.hpp>
#include <annulus/model/llama.hpp>
#include <annulus/optim/adamw.hpp>
#include <annulus/sharding/sharded_parameters.hpp>
#include <annulus/train/config.hpp>
#include <annulus/train/device.hpp>
#include <annulus/train/plan_memory.hpp>
#include <annulus/train/trainer.hpp>
#include <annulus/train/weight_source.hpp>
#include <annulus/weights/hf_weights.hpp>
