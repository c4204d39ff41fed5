"""Networks in plain JAX, as triples of functions; all of them compute in float32."""

from proxlin.bench.models.attention import transformer as transformer
from proxlin.bench.models.convolutional import cnn as cnn
from proxlin.bench.models.convolutional import convnet as convnet
from proxlin.bench.models.network import Network as Network
from proxlin.bench.models.perceptrons import autoencoder as autoencoder
from proxlin.bench.models.perceptrons import linear as linear
from proxlin.bench.models.perceptrons import mlp as mlp
from proxlin.bench.models.residual import resnet as resnet
from proxlin.bench.models.residual import resnet18 as resnet18
from proxlin.bench.models.residual import resnet34 as resnet34
