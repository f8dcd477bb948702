// Captured files, from a checked Document to a forward graph at given sizes. Every entry is evaluated once and then put
// down as often as its stretch repeats; what depends on the operands is checked each time their shapes are new.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "frontend/captured.h"
#include "frontend/captured_check.h"
#include "frontend/captured_document.h"
#include "graph/operator.h"

namespace precog {
namespace captured {
namespace {

constexpr std::int64_t kMost = CapturedLimits::kElements;

// Operators whose gradient depends on the type or the device, or of which our own rule knows more than a recording: it is
// used whether the file has a `back` or not.
bool derives_gradient(OpKind kind) {
  switch (kind) {
    case OpKind::grouped_linear:
    case OpKind::conv2d:
    case OpKind::scaled_dot_product_attention:
    case OpKind::layer_norm:
    case OpKind::rms_norm:
    case OpKind::group_norm:
    case OpKind::batch_norm:
    case OpKind::softmax:
    case OpKind::log_softmax:
    case OpKind::nll_loss:
    case OpKind::dropout:
    case OpKind::cast:
    case OpKind::embedding:
    case OpKind::rnn: return true;
    default: return false;
  }
}

// An entry with its extents evaluated, and what was made of it when its operands had these shapes.
struct Prototype {
  std::vector<Shape> shapes;           // of its results
  std::vector<std::vector<Shape>> back, back16;  // of each operator of its recorded gradients
  std::vector<Shape> seen;             // the operands' shapes when `op` was made
  bool ready = false;
  Op op;
  std::vector<Tensor> extra;           // results that the file does not list: statistics, masks
};

class Builder {
 public:
  Builder(const Document& document, const Symbols& symbols) : document_(document), symbols_(symbols) {}

  Result<Graph> run() {
    ids_.reserve(static_cast<std::size_t>(document_.tensors));
    for (const Stretch& stretch : document_.stretches) {
      std::vector<Prototype> prototypes(stretch.entries.size());
      for (std::size_t i = 0; i < stretch.entries.size(); ++i)
        if (!evaluate_entry(stretch.entries[i], prototypes[i])) return error(place_of(stretch, i));
      for (std::int64_t round = 0; round < stretch.repeat; ++round)
        for (std::size_t i = 0; i < stretch.entries.size(); ++i)
          if (!put(stretch.entries[i], prototypes[i], stretch, round)) return error(place_of(stretch, i));
    }
    if (!finish()) return error("loss");
    return std::move(graph_);
  }

 private:
  tl::unexpected<Error> error(const std::string& place) const { return fail(document_.where, place + ": " + problem_); }
  bool wrong(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  // --- extents
  bool shape_of(const std::vector<Extent>& extents, Shape& out) {
    std::int64_t elements = 1;
    for (const Extent& extent : extents) {
      const auto value = evaluate(extent, symbols_, kMost);
      if (!value || __builtin_mul_overflow(elements, *value, &elements) || elements > kMost)
        return wrong("a size is negative, or a tensor has more than 2^50 elements at these sizes");
      out.push_back(*value);
    }
    return true;
  }
  bool evaluate_entry(const Entry& entry, Prototype& prototype) {
    if (entry.is_tensor) return shape_of(entry.tensor.shape, prototype.shapes.emplace_back());
    for (const Made& made : entry.call.out)
      if (!shape_of(made.shape, prototype.shapes.emplace_back())) return false;
    return (!entry.back || evaluate_back(*entry.back, prototype.back)) && (!entry.back16 || evaluate_back(*entry.back16, prototype.back16));
  }
  bool evaluate_back(const Back& back, std::vector<std::vector<Shape>>& out) {
    for (const BackCall& call : back.ops) {
      auto& shapes = out.emplace_back();
      for (const Made& made : call.out)
        if (!shape_of(made.shape, shapes.emplace_back())) return false;
    }
    return true;
  }
  bool count(std::int64_t elements) {  // all tensors together, so that no sum of sizes overflows
    total_ += elements;
    return total_ <= CapturedLimits::kAllElements || wrong("the tensors have more than 2^54 elements together at these sizes");
  }

  // --- entries
  TensorId at(std::int64_t reference) const {
    const auto index = reference >= 0 ? reference : static_cast<std::int64_t>(ids_.size()) + reference;
    return ids_[static_cast<std::size_t>(index)];  // the parser has seen that it is there
  }
  static std::string filled(const std::string& text, const Stretch& stretch, std::int64_t round) {
    const std::size_t hole = stretch.repeated ? text.find("{}") : std::string::npos;
    if (hole == std::string::npos) return text;
    std::string out;
    const std::string number = fmt::format("{}", stretch.first + round);
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text.compare(i, 2, "{}") != 0) {
        out += text[i];
      } else {
        out += number;
        ++i;
      }
    }
    return out;
  }

  bool put(const Entry& entry, Prototype& prototype, const Stretch& stretch, std::int64_t round) {
    for (const Shape& shape : prototype.shapes)
      if (!count(shape.elements())) return false;
    for (const auto& shapes : prototype.back)  // back16 moves no more than back does
      for (const Shape& shape : shapes)
        if (!count(shape.elements())) return false;
    if (entry.is_tensor) {
      const bool floating = is_floating(entry.tensor.type);
      const std::string name = filled(entry.name, stretch, round);
      ids_.push_back(graph_.add_tensor({.shape = prototype.shapes[0], .dtype = entry.tensor.type, .role = entry.role,
                                        .requires_grad = entry.role == Role::parameter && floating && !entry.frozen,
                                        .name = graph_.intern(name.empty() ? "unnamed" : name)}));
      return true;
    }
    inputs_.clear();
    places_.assign(entry.in.size(), 0);
    // addmm's and baddbmm's bias comes first; ours is the last operand.
    const std::size_t rotate = bias_first(entry.call) ? 1 : 0;
    for (std::size_t i = 0; i < entry.in.size(); ++i) {
      const std::size_t from = (i + rotate) % entry.in.size();
      if (!entry.in[from]) continue;
      places_[from] = static_cast<std::uint32_t>(inputs_.size());
      inputs_.push_back(at(*entry.in[from]));
    }
    operands_.clear();
    for (TensorId id : inputs_) operands_.push_back(graph_.tensors[id].shape);
    if (!prototype.ready || operands_ != prototype.seen) {
      if (!prepare(entry, prototype)) return false;
      prototype.seen = operands_;
      prototype.ready = true;
    }
    return add(entry, prototype, stretch, round);
  }
  static bool bias_first(const Call& call) {
    const std::string_view name = call.name;
    return (name == "addmm" || name == "baddbmm" || name == "addbmm" || name == "addmv");
  }

  // Everything about an operator but its tensors: kind, attributes, recorded gradient, results the file leaves out.
  bool prepare(const Entry& entry, Prototype& prototype) {
    const Call& call = entry.call;
    Op op;
    op.kind = call.kind;
    op.strided = call.strided;
    op.autocast = call.known ? call.known->autocast : Autocast::none;
    if (call.settings.type) op.autocast = Autocast::none;  // the code's own word on the result's type is respected
    const bool in_place = call.kind != OpKind::view && call.kind != OpKind::split && !call.out.empty() && call.out[0].of == 0 &&
                          entry.in[0].has_value() && !bias_first(call);
    op.in_place = in_place;
    if (in_place || entry.autocast_off) op.autocast = Autocast::none;  // in-place forms are on no list
    if (is_generic(op.kind)) op.label = graph_.intern(call.name);
    if (!call.settings.traced_mask.empty()) op.label = graph_.intern(call.settings.traced_mask);
    if (op.kind == OpKind::view && call.out.size() > 1) op.kind = OpKind::split;
    prototype.extra.clear();
    const OperandView view{operands_, prototype.shapes};
    if (std::string problem = attributes_of(call, view, symbols_, op.attributes); !problem.empty()) return wrong(std::move(problem));
    if (std::string problem = check_operands(op.kind, op.attributes, view); !problem.empty()) return wrong(std::move(problem));
    prototype.extra = left_out(op.kind, op.attributes, view);
    for (const Tensor& tensor : prototype.extra)
      if (tensor.shape.elements() > kMost || tensor.shape.elements() < 0) return wrong("is too large at these sizes");
    if (entry.back && !derives_gradient(op.kind)) {
      if (!recipe_of(*entry.back, prototype.back, prototype, op.recipe)) return false;
      if (entry.back16 && !recipe_of(*entry.back16, prototype.back16, prototype, op.recipe_16bit)) return false;
    }
    prototype.op = op;
    return true;
  }

  bool recipe_of(const Back& back, const std::vector<std::vector<Shape>>& shapes, const Prototype& prototype, RecipeId& id) {
    Recipe recipe;
    std::vector<Shape> made, in;
    auto place = [&](RecipeOperand from) {
      if (from.from == RecipeOperand::From::input) from.index = places_[from.index];
      return from;
    };
    auto shape = [&](const RecipeOperand& from) -> const Shape& {  // of a place in the graph
      if (from.from == RecipeOperand::From::input) return operands_[from.index];
      return from.from == RecipeOperand::From::made ? made[from.index] : prototype.shapes[from.index];
    };
    for (std::size_t i = 0; i < back.ops.size(); ++i) {
      const BackCall& call = back.ops[i];
      RecipeOp& step = recipe.ops.emplace_back();
      step.kind = call.kind;
      step.strided = call.strided;
      if (is_generic(step.kind)) step.label = graph_.intern(call.name);
      in.clear();
      for (const RecipeOperand& from : call.in) {
        step.inputs.push_back(place(from));
        in.push_back(shape(step.inputs.back()));
      }
      for (std::size_t j = 0; j < call.out.size(); ++j) {
        std::int32_t of = call.out[j].of;
        if (step.kind == OpKind::view || step.kind == OpKind::split) of = 0;
        step.outputs.push_back({shapes[i][j], call.out[j].type, of});
      }
      step.in_place = step.kind != OpKind::view && step.kind != OpKind::split && !step.outputs.empty() && step.outputs[0].of == 0;
      if (step.kind == OpKind::view && call.out.size() > 1) step.kind = OpKind::split;
      const OperandView view{in, shapes[i]};
      std::string problem = attributes_of(call, view, symbols_, step.attributes);
      if (problem.empty()) problem = check_operands(step.kind, step.attributes, view);
      if (!problem.empty()) return wrong(fmt::format("'back', {}: {}", cut(call.name, 80), problem));
      made.insert(made.end(), shapes[i].begin(), shapes[i].end());
    }
    for (const RecipeGift& gift : back.gifts) {
      RecipeGift given{places_[gift.input], place(gift.gradient)};
      const std::int64_t has = shape(given.gradient).elements(), wants = operands_[given.input].elements();
      if (has < wants) return wrong(fmt::format("'back.give' hands {} elements to operand {} of {}", has, gift.input, wants));
      recipe.gifts.push_back(given);
    }
    id = graph_.recipes.add(std::move(recipe));
    return true;
  }

  bool add(const Entry& entry, const Prototype& prototype, const Stretch& stretch, std::int64_t round) {
    const Call& call = entry.call;
    Op op = prototype.op;
    op.block = static_cast<std::int16_t>(entry.block < 0 ? -1 : entry.block + (stretch.repeated ? round : 0));
    if (!entry.module.empty()) op.module = graph_.intern(filled(entry.module, stretch, round));
    if (call.settings.like) {
      if (op.kind != OpKind::cast) op.attributes = CastAttributes{};
      std::get<CastAttributes>(op.attributes).like = at(*call.settings.like);
    }
    if (op.kind == OpKind::dropout && call.settings.probability <= 0 && call.out.size() == 1) {  // nn.Dropout's fast path
      ids_.push_back(inputs_[0]);
      return true;
    }
    bool needs = false;
    for (TensorId id : inputs_) needs = needs || graph_.tensors[id].requires_grad;
    outputs_.clear();
    const bool shares = op.kind == OpKind::view || op.kind == OpKind::split;
    for (std::size_t i = 0; i < call.out.size(); ++i) {
      const Made& made = call.out[i];
      Tensor tensor{.shape = prototype.shapes[i], .dtype = made.type};
      const bool differentiable = is_floating(made.type) || made.type == DType::complex64;
      tensor.requires_grad = differentiable && (made.grad ? *made.grad && needs : needs && !made.hidden);
      // Statistics that the kernels keep in fp32 whatever they compute in, as the left-out ones are.
      if (i > 0 && made.hidden && definition(op.kind).family == Family::normalization && is_floating(made.type)) tensor.dtype = DType::fp32;
      if (shares && !inputs_.empty()) tensor.storage = graph_.tensors[inputs_[0]].storage;
      else if (made.of >= 0 && entry.in[static_cast<std::size_t>(made.of)])
        tensor.storage = graph_.tensors[inputs_[places_[static_cast<std::size_t>(made.of)]]].storage;
      outputs_.push_back(graph_.add_tensor(tensor));
      ids_.push_back(outputs_.back());
    }
    for (const Tensor& tensor : prototype.extra) {
      if (!count(tensor.shape.elements())) return false;
      outputs_.push_back(graph_.add_tensor(tensor));
    }
    graph_.add_op(op, inputs_, outputs_);
    return true;
  }

  // The loss is what the last operator makes: where the code goes on after it, a view of it is put last.
  bool finish() {
    const TensorId loss = at(document_.loss);
    const Tensor tensor = graph_.tensors[loss];
    if (tensor.role != Role::activation) return wrong("is a tensor from outside; it must be made by an operator");
    if (tensor.shape.elements() != 1) return wrong(fmt::format("has the shape {}; it must be a single value", to_text(tensor.shape)));
    if (!tensor.requires_grad) return wrong("depends on no parameter that is trained");
    const Op& last = graph_.ops.back();
    if (last.output_count > 0 && graph_.output(last) == loss) return true;
    Op op;
    op.kind = OpKind::view;
    op.attributes = ViewAttributes{};
    const TensorId inputs[] = {loss};
    const TensorId outputs[] = {graph_.add_tensor({.shape = tensor.shape, .dtype = tensor.dtype, .requires_grad = true, .storage = tensor.storage})};
    graph_.add_op(op, inputs, outputs);
    return true;
  }

  const Document& document_;
  Symbols symbols_;
  Graph graph_;
  std::vector<TensorId> ids_;  // by the file's numbers
  std::string problem_;
  std::int64_t total_ = 0;
  // Of the entry at hand: its operands as the graph has them, where each of the file's went, their shapes.
  std::vector<TensorId> inputs_, outputs_;
  std::vector<std::uint32_t> places_;
  std::vector<Shape> operands_;
};

struct Wanted {
  const char* name;
  std::int64_t asked, captured;
  bool symbolic;
};

}  // namespace
}  // namespace captured

Result<Graph> build_captured(const CapturedModel& model, const ModelInputs& inputs) {
  const std::string& where = model.document->where;
  std::vector<Problem> problems;
  captured::Symbols symbols;
  auto size = [&](const captured::Wanted& wanted) {
    if (wanted.asked < 0 || wanted.asked > std::int64_t{1} << 32) problems.push_back({wanted.name, fmt::format("is {}; it must be from 1 to 2^32", wanted.asked)});
    if (!wanted.symbolic && wanted.captured > 0 && wanted.asked > 0 && wanted.asked != wanted.captured)
      problems.push_back({wanted.name, fmt::format("is {}, but {} was captured at {} only; capture it again at another", wanted.asked, where, wanted.captured)});
    return wanted.asked > 0 ? wanted.asked : std::max<std::int64_t>(1, wanted.captured);
  };
  symbols.batch = size({"batch", inputs.batch, model.captured_batch, model.has_batch});
  symbols.seq = size({"seq", inputs.seq, model.captured_seq, model.has_seq});
  symbols.src_seq = size({"src_seq", inputs.src_seq, model.captured_src_seq, model.has_src_seq});
  if (inputs.layers) problems.push_back({"layers", "a captured model's depth cannot be changed"});
  if (!problems.empty()) return fail(std::move(problems));
  return captured::Builder(*model.document, symbols).run();
}

std::int64_t tokens_per_sample(const CapturedModel& model, const ModelInputs& inputs) {
  const captured::Symbols symbols{std::max<std::int64_t>(1, inputs.batch), inputs.seq > 0 ? inputs.seq : std::max<std::int64_t>(1, model.captured_seq),
                                  inputs.src_seq > 0 ? inputs.src_seq : std::max<std::int64_t>(1, model.captured_src_seq)};
  return captured::evaluate(model.document->tokens_per_sample, symbols, CapturedLimits::kElements).value_or(0);
}

}  // namespace precog
