// The two functions of the door: read a file, build a graph at a size.
#include <algorithm>
#include <filesystem>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontend/onnx_extents.h"
#include "frontend/onnx_import.h"
#include "frontend/onnx_layouts.h"
#include "frontend/onnx_model.h"
#include "frontend/onnx_patterns.h"
#include "frontend/onnx_wire.h"

namespace precog {
namespace {

using namespace onnx;

// A file's bytes, mapped and not read: only the pages that hold structure are ever touched.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat about {};
    if (file >= 0 && ::fstat(file, &about) == 0 && S_ISREG(about.st_mode)) {
      size_ = static_cast<std::size_t>(about.st_size);
      void* at = size_ == 0 ? MAP_FAILED : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
      if (at != MAP_FAILED) data_ = static_cast<const char*>(at);
      opened_ = size_ == 0 || data_;
    }
    if (file >= 0) ::close(file);
  }
  ~MappedFile() {
    if (data_) ::munmap(const_cast<char*>(data_), size_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  bool opened() const { return opened_; }
  std::string_view bytes() const { return data_ ? std::string_view(data_, size_) : std::string_view(); }

 private:
  const char* data_ = nullptr;
  std::size_t size_ = 0;
  bool opened_ = false;
};

struct Imported {
  Graph graph;
  std::vector<std::string> notes;
};

// The batch and the lengths of the trial: small, and different from each other and from one.
constexpr Sizes kTrial{.batch = 3, .seq = 6, .src_seq = 10};

bool is_logits(const Recognised& found, const std::string& name, const Shape& shape) {
  if (shape.rank() < 2 || shape.rank() > 3 || shape[-1] < 2) return false;
  for (const Node& node : found.nodes)
    if (std::find(node.outputs.begin(), node.outputs.end(), name) != node.outputs.end())
      return node.op == "Gemm" || node.op == "MatMul" || node.op == "Linear" || node.op == "LogSoftmax" ||
             (node.op == "Reshape" && shape.rank() == 2) || (node.op == "Flatten") || node.op == "Cast" || node.op == "Identity" ||
             node.op == "Mul";
  return false;
}

void add_loss(Importer& im, const ParsedModel& file, const Recognised& found) {
  const Value* scalar_output = nullptr;
  const Value* first = nullptr;
  for (const ValueInfo& output : file.graph.outputs) {
    const Value* value = im.find(output.name);
    if (!value || !value->id.valid() || value->type != DType::model || !im.trains(*value)) continue;
    if (value->shape.elements() == 1 && !scalar_output) scalar_output = value;
    if (!first) first = value;
  }
  if (!first) throw OnnxError("no output depends on a floating initializer: there is nothing to train");
  Node node;
  node.op = "loss";
  if (scalar_output) {  // the loss is the last operator's result
    im.note(fmt::format("output '{}' is a single number and taken for the loss", scalar_output->name));
    im.emit(OpKind::mul_scalar, {scalar_output->id}, Shape{}, DType::model);
    return;
  }
  const Value x = *first;
  if (!is_logits(found, x.name, x.shape)) {
    im.note(fmt::format("the file holds no loss: the mean of squares of output '{}' is taken", x.name));
    im.emit(OpKind::mean, {im.emit(OpKind::pow, {x.id}, x.shape).id}, Shape{});
    return;
  }
  const std::int64_t rows = x.shape.elements() / x.shape[-1];
  Value logits = x;
  std::string how = "on the logits in the model's own type";
  TensorId target;
  const bool next_token = x.shape.rank() == 3 && found.causal > 0 && found.causal == found.attentions;
  if (next_token) {
    // As causal language models of transformers do: logits in fp32, labels padded by one and shifted.
    const std::int64_t batch = x.shape[0], seq = x.shape[1];
    const TensorId labels = im.graph().add_tensor(
        {.shape = {batch, seq}, .dtype = DType::int64, .role = Role::input, .name = im.graph().intern("labels")});
    logits = im.emit(OpKind::cast, {x.id}, x.shape, DType::fp32, CastAttributes{.to = DType::fp32});
    const TensorId blank = im.emit(OpKind::integer_pointwise, {}, Shape{batch, seq + 1}, DType::int64).id;
    const Value padded = im.emit(OpKind::integer_pointwise, {blank, labels}, Shape{batch, seq + 1}, DType::int64);
    const Value cut = im.view(padded, Shape{batch, seq}, ViewKind::slice, padded.strides);
    target = im.reshape(node, im.contiguous(cut), Shape{rows}).id;
    how = "on logits in fp32 against labels shifted by one, as transformers' causal models do";
  } else {
    const Shape labels = x.shape.rank() == 3 ? Shape{x.shape[0], x.shape[1]} : Shape{rows};
    target =
        im.graph().add_tensor({.shape = labels, .dtype = DType::int64, .role = Role::input, .name = im.graph().intern("target")});
    if (labels.rank() == 2) target = im.reshape(node, im.wrap(target), Shape{rows}).id;
  }
  im.note(fmt::format("the file holds no loss: cross-entropy {} ('{}', {} classes) is taken", how, x.name, x.shape[-1]));
  if (logits.shape.rank() != 2) logits = im.reshape(node, logits, Shape{rows, x.shape[-1]});
  const DType type = logits.type;
  const TensorId log = im.emit(OpKind::log_softmax, {logits.id}, logits.shape, type).id;
  const std::vector<TensorId> inputs = {log, target};
  im.emit_to(OpKind::nll_loss, inputs, {im.make({}, DType::model, inputs), im.make({}, DType::fp32, {})});
}

void add_notes(Importer& im, const ParsedModel& file, const Recognised& found) {
  std::size_t convolutions = 0, biased = 0, norms = 0, dropouts = 0;
  for (const Node& node : file.graph.nodes) {
    convolutions += node.op == "Conv" ? 1 : 0;
    biased += node.op == "Conv" && node.inputs.size() > 2 ? 1 : 0;
    norms += node.op == "BatchNormalization" || node.op == "InstanceNormalization" ? 1 : 0;
    dropouts += node.op == "Dropout" ? 1 : 0;
  }
  const bool restored = std::any_of(im.notes().begin(), im.notes().end(),
                                    [](const std::string& note) { return note.find("put back") != std::string::npos; });
  if (convolutions >= 4 && biased * 2 > convolutions && norms == 0 && !restored)
    im.note(
        "convolutions have biases and there is no batch normalisation: if an inference export folded it away, export in training "
        "mode "
        "(torch.onnx.export(..., dynamo=False, training=TrainingMode.TRAINING, do_constant_folding=False)) to have its cost "
        "predicted");
  if (found.attentions > 0)
    im.note(fmt::format("{} attention{} put together again as scaled_dot_product_attention{}", found.attentions,
                        found.attentions == 1 ? "" : "s",
                        found.causal > 0 ? fmt::format(", {} of them causal", found.causal) : ""));
  if (found.dropouts_assumed > 0)
    im.note(
        fmt::format("torch.export's exporter leaves out the dropout of attention: taken to be {:.3g}, as elsewhere in the model",
                    found.dropout));
  if (found.attentions > 0 && dropouts == 0) im.note("there is no dropout in the file; an inference export leaves it out");
  im.note("every floating initializer is taken to be trained");
}

Imported import_model(const ParsedModel& file, const Sizes& sizes) {
  // First without patterns, small, to learn shapes and what masks hide; at the real size where a small one does not fit.
  std::unique_ptr<Importer> trial;
  try {
    trial = std::make_unique<Importer>(file, kTrial);
    trial->run(file.graph.nodes);
  } catch (const OnnxError&) {
    trial = std::make_unique<Importer>(file, sizes);
    trial->run(file.graph.nodes);
  }
  const Recognised found = recognise(file, *trial);
  Importer im(file, sizes);
  im.run(found.nodes);
  add_loss(im, file, found);
  add_notes(im, file, found);
  mark_copied_gradients(im.graph());
  return {std::move(im.graph()), im.notes()};
}

}  // namespace

Result<OnnxModel> read_onnx_bytes(std::string_view bytes, const std::string& where) {
  try {
    if (bytes.empty()) throw OnnxError("is empty: it is no ONNX model");
    auto file = std::make_shared<ParsedModel>(parse_model(bytes));
    if (file->graph.nodes.empty()) throw OnnxError("its graph has no nodes");
    if (file->graph.inputs.empty()) throw OnnxError("its graph has no inputs");
    OnnxModel out;
    bind_extents(*file, out);
    out.name = std::filesystem::path(where).stem().string();
    Sizes sizes = kTrial;
    if (out.has_src_seq || out.has_seq) sizes.seq = out.captured_seq > 0 ? out.captured_seq : 64, sizes.src_seq = 64;
    out.notes = import_model(*file, sizes).notes;
    out.file = std::move(file);
    return out;
  } catch (const OnnxError& error) {
    return fail(where, error.what());
  }
}

Result<OnnxModel> read_onnx(const std::string& path) {
  const MappedFile file(path);
  if (!file.opened()) return fail(path, "cannot be read as a file");
  return read_onnx_bytes(file.bytes(), path);
}

Result<Graph> build_onnx(const OnnxModel& model, const ModelInputs& inputs) {
  if (model.has_seq && inputs.seq <= 0) return fail(model.name, "its sequence length is symbolic: say which (\"seq\", --seq)");
  if (inputs.layers) return fail(model.name, "the depth of an ONNX model cannot be changed (\"layers\")");
  if (!model.has_batch && inputs.batch != model.captured_batch)
    return fail(model.name, fmt::format("was exported for a batch of {}; export it with a symbolic one to ask for {}",
                                        model.captured_batch, inputs.batch));
  if (!model.has_seq && model.captured_seq > 0 && inputs.seq > 0 && inputs.seq != model.captured_seq)
    return fail(model.name, fmt::format("was exported for a sequence of {}; export it with a symbolic one to ask for {}",
                                        model.captured_seq, inputs.seq));
  Sizes sizes{.batch = std::max<std::int64_t>(inputs.batch, 1),
              .seq = std::max<std::int64_t>(inputs.seq, 1),
              .src_seq = std::max<std::int64_t>(inputs.src_seq > 0 ? inputs.src_seq : inputs.seq, 1)};
  constexpr std::int64_t kLimit = std::int64_t{1} << 24;
  if (std::max({sizes.batch, sizes.seq, sizes.src_seq}) > kLimit) return fail(model.name, "a batch or sequence beyond 2^24");
  try {
    return import_model(*model.file, sizes).graph;
  } catch (const OnnxError& error) {
    return fail(model.name, error.what());
  }
}

}  // namespace precog
