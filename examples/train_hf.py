"""A small GPT-2 trained by the Trainer of Hugging Face, as its documentation writes it."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments


class Sequences(Dataset):
    """Random token sequences, each drawn from its own number."""

    def __len__(self):
        return 2048

    def __getitem__(self, index):
        tokens = torch.randint(0, 256, (32,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main():
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=256, n_positions=64))
    Trainer(model=model, args=args, train_dataset=Sequences()).train()


if __name__ == "__main__":
    main()
