"""Records what Home Assistant sends, on loopback and with a dummy key, into tests/server/requests.

Use: python3.13 -m tools.record_home_assistant

Needs the packages homeassistant and openai, and what its parts conversation and ai_task name in their manifests, in an
environment of their own; the release decides which Python it runs on. Its integration openai_conversation, as a user
sets it up with a model's name and the Assist API, is asked to switch on a lamp. Of the request stay the names of
fields, their types and their structure (tools/anonymiser.py).
"""

import asyncio
import json
import os
import tempfile
from importlib.metadata import version
from types import MappingProxyType

from tools.anonymiser import Anonymiser
from tools.record_requests import FOLDER, Recorder

MODEL = "karat-embedded"


async def ask(place: str) -> None:
    """Say one sentence to the integration, in a Home Assistant whose configuration is the empty folder `place`."""
    from homeassistant import auth, bootstrap, config_entries, core, loader
    from homeassistant.components import conversation
    from homeassistant.components.homeassistant.exposed_entities import async_expose_entity
    from homeassistant.components.openai_conversation import const
    from homeassistant.setup import async_setup_component

    hass = core.HomeAssistant(place)
    hass.config.skip_pip = True
    hass.config.media_dirs = {"local": place}
    loader.async_setup(hass)
    hass.config_entries = config_entries.ConfigEntries(hass, {})
    await bootstrap.async_load_base_functionality(hass)
    hass.auth = await auth.auth_manager_from_config(hass, [], [])
    for name in ("homeassistant", "conversation", "light"):
        assert await async_setup_component(hass, name, {}), name
    await hass.async_start()
    hass.states.async_set("light.lamp", "off", {"friendly_name": "lamp"})
    async_expose_entity(hass, "conversation", "light.lamp", should_expose=True)
    settings = const.RECOMMENDED_CONVERSATION_OPTIONS | {const.CONF_CHAT_MODEL: MODEL}
    agent = config_entries.ConfigSubentryData(
        data=settings, subentry_type="conversation", title="agent", unique_id=None
    )
    entry = config_entries.ConfigEntry(
        data={"api_key": "dummy"},
        discovery_keys=MappingProxyType({}),
        domain=const.DOMAIN,
        minor_version=4,
        options={},
        source="user",
        subentries_data=[agent],
        title="Karat",
        unique_id=None,
        version=2,
    )
    await hass.config_entries.async_add(entry)
    await hass.async_block_till_done()
    await conversation.async_converse(hass, "Switch on the lamp", None, core.Context(), agent_id="conversation.agent")
    await hass.async_stop(force=True)


def main() -> None:
    recorder = Recorder()
    os.environ["OPENAI_BASE_URL"] = f"{recorder.url}/v1"  # its settings have no place for an address
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(ask(place))
    route, body = recorder.requests[0]
    origin = f"recorded: homeassistant {version('homeassistant')}, openai_conversation with the Assist API"
    recorded = {"from": origin, "route": route, "body": Anonymiser().of(body)}
    text = json.dumps(recorded, indent=1, ensure_ascii=False) + "\n"
    (FOLDER / "home-assistant.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
