"""Functions that users may name as model.torch and model.loss: modules with a step of their own, and their faults."""

import warnings

import torch
from torch import nn
from torch.nn import functional

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pytorch_lightning as pl

TOKENS, LENGTH = 11, 6


class TokenSums(nn.Module):
    """Scores of the next tokens, from {ids, mask} by name."""

    def __init__(self):
        super().__init__()
        self.table, self.scores = nn.Embedding(TOKENS, 8), nn.Linear(8, TOKENS)

    def forward(self, ids, mask):
        return self.scores((self.table(ids) * mask[..., None]).cumsum(1))


class OneDict(TokenSums):
    def forward(self, batch):
        return super().forward(batch["ids"], batch["mask"])


class TwoTensors(TokenSums):
    """Takes its inputs as two arguments that have other names."""

    def forward(self, first, second):
        return super().forward(first, second)


class LossAmongOutputs(TokenSums):
    """Gives its loss among its outputs, as the models of Hugging Face do."""

    def forward(self, ids, mask, labels):
        scores = super().forward(ids, mask)
        return {"loss": token_loss(scores, labels), "logits": scores}


class ScoresAndLoss(LossAmongOutputs):
    """Gives (scores, loss), as nanoGPT does; with `losses` more numbers, none of which is named."""

    def __init__(self, losses=1):
        super().__init__()
        self.losses = losses

    def forward(self, ids, mask, labels):
        outputs = super().forward(ids, mask, labels)
        return outputs["logits"], *[outputs["loss"]] * self.losses


class Losses(LossAmongOutputs):
    """Gives its losses by name, and not their sum, as detectors of torchvision do."""

    def forward(self, ids, mask, labels):
        return {"loss_scores": super().forward(ids, mask, labels)["loss"]}


def token_loss(scores, labels):
    return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


class Numbered(nn.Module):
    """A plain module with a training_step, (n, 5) -> (n, 2), whose loss grows with the number of the batch."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 2)

    def training_step(self, batch, batch_idx):
        return functional.mse_loss(self.last(batch[0]), batch[1]) + batch_idx


class Regression(pl.LightningModule):
    """A LightningModule that takes (inputs, targets); `fault` is one word for what is wrong with it, and `frequency`
    the number of steps between the advances of its scheduler, if it has one."""

    def __init__(self, fault="", frequency=0, schedule_ends=""):
        super().__init__()
        self.fault, self.frequency, self.schedule_ends = fault, frequency, schedule_ends
        self.first, self.last = nn.Linear(5, 7), nn.Linear(7, 2)
        self.seen = []
        if fault == "manual":
            self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        self.seen.append(batch_idx)
        loss = functional.huber_loss(self.last(self.first(inputs).tanh()), targets)
        if not self.training:
            return {} if self.fault == "silent" else {"loss": loss}
        self.log("loss", loss)
        return {"nan": loss * torch.nan, "none": None, "vector": loss.repeat(3)}.get(self.fault, loss)

    def configure_optimizers(self):
        if self.fault == "none_made":
            return None
        if self.fault == "two":
            return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (self.first, self.last)]
        parameters = self.last.parameters() if self.fault == "misses" else self.parameters()
        if self.fault == "foreign":
            parameters = [*parameters, nn.Parameter(torch.zeros(2))]
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        if not self.frequency:
            return [optimizer], []
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        if self.fault == "plateau":
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        if self.schedule_ends == "once":
            scheduler = one_cycle(optimizer)
        elif self.schedule_ends == "second":
            schedulers = [torch.optim.lr_scheduler.ConstantLR(optimizer), one_cycle(optimizer)]
            scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, schedulers, milestones=[1])
        return [optimizer], [{"scheduler": scheduler, "interval": "step", "frequency": self.frequency}]


class WithTrainer(Regression):
    """A Regression that a Trainer sets up, with a schedule by epoch, which notes its step and epoch in each step; with
    `gathers` it wants more of a Trainer."""

    def __init__(self, gathers=False, ends=False):
        super().__init__()
        self.gathers, self.ends = gathers, ends
        self.counts = []
        self.calls = []
        del self.last

    def setup(self, stage):
        self.calls.append(f"setup {stage}")
        self.last = nn.Linear(7, 2)

    def on_train_start(self):
        self.calls.append("start")

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if self.ends and batch_idx == 2 else None

    def training_step(self, batch, batch_idx):
        self.counts.append((self.global_step, self.current_epoch))
        self.logger.experiment.add_scalar("step", self.global_step)
        if self.gathers:
            assert self.trainer.world_size == 1 and self.optimizers() is not None
            batch = [self.all_gather(part) for part in batch]
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]

    def train_dataloader(self):
        raise AssertionError


class Hooked(Regression):
    """A Regression whose hooks change its batches: twice the targets and 2, in a dict. `sums` has the sum of the
    targets before, in and after each training_step."""

    def __init__(self):
        super().__init__()
        self.sums = []

    def on_before_batch_transfer(self, batch, dataloader_idx):
        inputs, targets = batch
        return inputs, targets + 1

    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        inputs, targets = batch
        return inputs.to(device), 2 * targets.to(device)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return dict(zip(("inputs", "targets"), batch, strict=True))

    def on_train_batch_start(self, batch, batch_idx):
        self.sums.append(float(batch["targets"].sum()))

    def training_step(self, batch, batch_idx):
        if isinstance(batch, dict):  # and not the check before training
            self.sums.append(float(batch["targets"].sum()))
            batch = tuple(batch.values())
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.sums.append(float(batch["targets"].sum()))


def one_cycle(optimizer):
    """Return a schedule of three rates, the last of which is 0.1 / 1000."""
    limits = {"max_lr": 0.2, "div_factor": 2, "final_div_factor": 1000}
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, total_steps=3, **limits)


def takes_threads():
    torch.set_num_threads(torch.get_num_threads() + 1)
    return TokenSums()


def with_optimizer(rate=0.1):
    """Return a module with an optimizer of two groups."""
    module = TokenSums()
    groups = [{"params": module.table.parameters(), "lr": 2 * rate}, {"params": module.scores.parameters()}]
    return module, torch.optim.Adagrad(groups, lr=rate)


def needs_gpu():
    return TokenSums().to("cuda")


def nan_loss(scores, labels):
    return token_loss(scores, labels) * torch.nan


def no_loss(scores, labels):
    return "small"


number = 3
