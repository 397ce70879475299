"""`python -m shoal_gateway`: one replica."""

from shoal_common import process
from shoal_gateway.server import main
from shoal_gateway.settings import GatewaySettings

process.run("gateway", GatewaySettings, main)
