#!/bin/bash
# A GPT of 22 billion parameters on one node, in the manner of Megatron-LM's examples.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-1}
TP=8
CHECKPOINTS=$1

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES --rdzv_backend c10d"

MODEL_ARGS=(
    --num-layers 48
    --hidden-size 6144
    --num-attention-heads 64
    --seq-length 2048
    --max-position-embeddings 2048   # learned
    --attention-dropout 0.1
    --hidden-dropout 0.1
)

TRAINING_ARGS=(
    --micro-batch-size 4 \
    --global-batch-size 4 \
    --train-iters 500000
    --lr 1.5e-4 --min-lr 1e-5 --lr-decay-style cosine
    --clip-grad 1.0
    --fp16 --accumulate-allreduce-grads-in-fp32
    --transformer-impl local
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size 1
    --sequence-parallel
    --recompute-activations
)

torchrun $DISTRIBUTED_ARGS pretrain_gpt.py \
    "${MODEL_ARGS[@]}" \
    "${TRAINING_ARGS[@]}" \
    --tokenizer-type GPT2BPETokenizer \
    --save "$CHECKPOINTS" \
    --save-interval 10000 \
    --our-own-logger verbose
