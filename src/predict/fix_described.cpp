#include "predict/fix_choices.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"

namespace precog {

FixDegrees::FixDegrees(const Plan& plan, const std::vector<const FixChoice*>& choices) : ep(plan.ep), tp(plan.tp), cp(plan.cp), pp(plan.pp) {
  for (const FixChoice* choice : choices)
    for (auto [axis, degree] : {std::pair{FixAxis::ep, &ep}, {FixAxis::tp, &tp}, {FixAxis::cp, &cp}, {FixAxis::pp, &pp}})
      if (choice->axis == axis) *degree = static_cast<int>(choice->value);
  const int gpus = plan.dp * plan.tp * plan.cp * plan.pp;
  dp = std::max(1, gpus / (tp * cp * pp));
  const int experts = ep == plan.ep && tp == plan.tp && plan.etp > 0 ? ep * plan.etp : ep == 1 ? 1 : ep * tp;
  valid = dp * tp * cp * pp == gpus && dp * tp * cp % experts == 0;
}

Fix smaller_batch(std::int64_t batch, const Json& request, const Report& base) {
  Fix out;
  const std::int64_t all = base.global_batch / base.batch * batch;
  out.change = fmt::format("batch {} instead of {}", batch, base.batch);
  out.flags = fmt::format("--batch {}", batch);
  out.request = {{"batch", batch}};
  if (request.contains("global_batch")) {
    out.flags += fmt::format(" --global-batch {}", all);
    out.request["global_batch"] = all;
  }
  out.note = fmt::format("a smaller step: {} samples, not {}", all, base.global_batch);
  out.numerics = "fewer samples make a step: more steps for as many samples, and a learning rate of their own";
  out.axes = {static_cast<std::uint8_t>(FixAxis::batch)};
  out.smaller_step = true;
  out.result = static_cast<std::uint8_t>(FixResult::close);
  return out;
}

FixUndone undone(const Json& request) {
  FixUndone out;
  const auto said = [](const Json& where, const char* key) {
    const std::string value = where.contains(key) && where[key].is_string() ? where[key].get<std::string>() : "none";
    return value == "none" ? std::string() : value;
  };
  out.recompute = said(request, "recompute");
  out.by_layers = request.contains("recompute_layers");
  out.every = request.contains("recompute_every");
  if (!request.contains("plan") || !request["plan"].is_object()) return out;
  if (!request["plan"].contains("offload_layers") && !request["plan"].contains("offload_fraction")) out.offload = said(request["plan"], "offload");  // no flag takes those back
  return out;
}

Json without(const FixUndone& undone, const Json& request) {
  Json out = request;
  if (!undone.recompute.empty())
    for (const char* key : {"recompute", "recompute_layers", "recompute_every"}) out.erase(key);
  if (!undone.offload.empty()) out["plan"].erase("offload");
  return out;
}

Fix fix_of_choices(const std::vector<const FixChoice*>& choices, int layers, const Json& request, const Plan& plan, const Report& base, const FixUndone& undone, int all) {
  Fix out;
  out.request = Json::object();
  std::vector<std::string> words, flags, notes, numerics;
  std::string precision = request.contains("precision") && request["precision"].is_string() ? request["precision"].get<std::string>() : "";
  const std::string before = precision;
  bool batches = false, sayable = true, recomputes = undone.recompute.empty(), offloads = undone.offload.empty();
  for (const FixChoice* choice : choices) {
    const bool recomputed = choice->axis == FixAxis::recompute, moved = choice->moves || choice->axis == FixAxis::offload;
    // What the job says already is not said again.
    const bool whole = layers == 0 || !choice->by_layers;
    if (recomputed && !choice->moves && whole && !undone.by_layers && !undone.every && !recomputes && choice->patch == Json{{"recompute", undone.recompute}}) {
      recomputes = true;
      continue;
    }
    if (moved && !recomputed && whole && !offloads && choice->patch == Json{{"plan", {{"offload", undone.offload}}}}) {
      offloads = true;
      continue;
    }
    recomputes = recomputes || recomputed;
    offloads = offloads || moved;
    if (!choice->recipe.empty()) precision = choice->recipe + (before.find('+') == std::string::npos ? "" : before.substr(before.find('+')));
    if (!choice->part.empty()) precision += "+" + choice->part;
    std::string change = choice->change, flag = choice->flags;
    out.request.merge_patch(choice->patch);
    const int of = layers == 0 && recomputed && undone.by_layers ? all : layers;
    if (recomputed && undone.by_layers && of == 0) out.request["recompute_layers"] = nullptr, sayable = false;
    if (choice->by_layers && of > 0) {
      if (layers > 0) change += fmt::format(" of {} layer{}", layers, layers == 1 ? "" : "s");
      flag += fmt::format(" --{}-layers {}", recomputed ? "recompute" : "offload", of);
      (recomputed ? out.request : out.request["plan"])[choice->by_layers] = of;
      if (choice->moves) flag += fmt::format(" --offload-layers {}", of), out.request["plan"]["offload_layers"] = of;
    }
    if (recomputed && undone.every) flag += " --recompute-every 1", out.request["recompute_every"] = 1;
    words.push_back(change);
    if (!flag.empty()) flags.push_back(flag);
    if (!choice->note.empty() && choices.size() == 1) notes.push_back(choice->note);
    if (!choice->numerics.empty()) numerics.push_back(choice->numerics);
    batches = batches || choice->axis == FixAxis::batch || choice->axis == FixAxis::stages || is_degree(choice->axis);
    out.result = std::max(out.result, static_cast<std::uint8_t>(choice->result));
    out.axes.push_back(static_cast<std::uint8_t>(choice->axis));
  }
  const auto undo = [&](FixAxis axis, const char* said, const char* flag) {
    words.push_back(said);
    flags.push_back(flag);
    out.axes.push_back(static_cast<std::uint8_t>(axis));
  };
  if (!offloads) undo(FixAxis::offload, "nothing on the host", "--offload none"), out.request["plan"]["offload"] = "none";
  if (!recomputes) undo(FixAxis::recompute, "no recomputation", "--recompute none"), out.request["recompute"] = "none";
  if (!recomputes && undone.by_layers) out.request["recompute_layers"] = nullptr, sayable = false;
  if (!recomputes && undone.every) out.request["recompute_every"] = nullptr, sayable = false;
  std::sort(out.axes.begin(), out.axes.end());
  if (precision != before) {
    flags.insert(flags.begin(), "--precision " + precision);
    out.request["precision"] = precision;
  }
  if (base.largest_batch && !request.contains("global_batch")) batches = false;  // the step's size follows from the batch, which is sought
  if (batches) {
    flags.push_back(fmt::format("--global-batch {}", base.global_batch));
    out.request["global_batch"] = base.global_batch;
  }
  const FixDegrees degrees(plan, choices);
  const Json given = request.contains("plan") && request["plan"].is_object() ? request["plan"] : Json::object();
  if (degrees.dp != plan.dp && given.contains("dp")) {
    flags.push_back(fmt::format("--dp {}", degrees.dp));
    out.request["plan"]["dp"] = degrees.dp;
  }
  // Nobody to share with: what the job says of that is taken back.
  if (degrees.alone() && plan.replicas() > 1 && given.contains("fsdp") && !out.request.value("plan", Json::object()).contains("fsdp")) {
    flags.push_back("--fsdp none");
    out.request["plan"]["fsdp"] = "none";
  }
  // A number of micro-batches that the job gives follows from the others.
  if (batches && request.contains("micro_batches")) {
    const std::int64_t each = base.global_batch / std::max<std::int64_t>(1, out.request.value("batch", base.batch) * degrees.dp);
    flags.push_back(fmt::format("--micro-batches {}", each));
    out.request["micro_batches"] = each;
  }
  out.change = join(words, " + ");
  out.flags = sayable ? join(flags, " ") : "";
  out.note = join(notes, "; ");
  out.numerics = join(numerics, "; ");
  return out;
}

}  // namespace precog
