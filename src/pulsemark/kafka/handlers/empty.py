"""Questions about things that this broker lacks: Kafka's ACLs, SCRAM users, transactions.

They are answered as by a Kafka without them, so that tools that ask go on: lists are empty, and
changes of ACLs are refused, as by a Kafka without an authorizer.
"""

from __future__ import annotations

from operator import itemgetter

from kafka.protocol.admin import (
    CreateAclsResponse,
    DeleteAclsResponse,
    DescribeAclsResponse,
    DescribeUserScramCredentialsResponse,
    ListTransactionsResponse,
)

from ..errors import Code, KafkaError
from ..session import Handler, KafkaSession, one_part, parts_of
from ..wire import Request

__all__ = ["HANDLERS"]

NO_ACLS = "No Authorizer is configured: permissions are those of Pulsar's namespaces and topics."
NO_SUCH_USER = "Attempt to describe a user credential that does not exist"
#: What the answer says of a user, beside the name.
ABOUT_USER_BYTES = 100
#: Kafka's states of a transaction.
STATES = frozenset(
    {
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    }
)

_User = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


def _refusal(session: KafkaSession, code: Code, message: str | None) -> tuple[Code, str | None]:
    """The code and text for a client that may see the broker's settings, or 31."""
    try:
        session.access.check_broker()
    except KafkaError as refusal:
        return refusal.code, refusal.message
    return code, message


def describe_acls(session: KafkaSession, request: Request) -> None:
    """There is no authorizer of Kafka's kind."""
    code, message = _refusal(session, Code.SECURITY_DISABLED, NO_ACLS)
    response = DescribeAclsResponse(
        throttle_time_ms=0, error_code=code, error_message=message, resources=[]
    )
    session.answer(request, response)


async def create_acls(session: KafkaSession, request: Request) -> None:
    """Each is refused. The answer has one result for each, in their order."""
    code, message = _refusal(session, Code.SECURITY_DISABLED, NO_ACLS)
    refused = CreateAclsResponse.AclCreationResult(error_code=code, error_message=message)
    results = [refused] * len(request.body.creations or ())
    response = CreateAclsResponse(throttle_time_ms=0, results=results)
    await session.answer_by_size(request, response, len(results))


async def delete_acls(session: KafkaSession, request: Request) -> None:
    """Each is refused. The answer has one result for each, in their order."""
    code, message = _refusal(session, Code.SECURITY_DISABLED, NO_ACLS)
    refused = DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=code, error_message=message, matching_acls=[]
    )
    results = [refused] * len(request.body.filters or ())
    response = DeleteAclsResponse(throttle_time_ms=0, filter_results=results)
    await session.answer_by_size(request, response, len(results))


async def describe_scram_users(session: KafkaSession, request: Request) -> None:
    """There is no such user. Null or an empty list asks for all."""
    code, message = _refusal(session, Code.NONE, None)
    users = request.body.users or () if code is Code.NONE else ()
    names = await session.gathered(users, lambda user: user.name or "")
    results = [
        _User(
            user=name,
            error_code=Code.RESOURCE_NOT_FOUND if len(each) == 1 else Code.DUPLICATE_RESOURCE,
            error_message=NO_SUCH_USER if len(each) == 1 else "a user is named more than once",
            credential_infos=[],
        )
        async for name, each in session.named(
            names.items(), lambda item: ABOUT_USER_BYTES + len(item[0]), key=itemgetter(0)
        )
    ]
    response = DescribeUserScramCredentialsResponse(
        throttle_time_ms=0, error_code=code, error_message=message, results=results
    )
    await session.answer_by_size(request, response, len(results))


async def list_transactions(session: KafkaSession, request: Request) -> None:
    """The broker has no such thing: an empty list."""
    asked = session.named(request.body.state_filters or ())
    unknown = [state async for state in asked if state not in STATES]
    response = ListTransactionsResponse(
        throttle_time_ms=0, error_code=Code.NONE, unknown_state_filters=unknown,
        transaction_states=[],
    )  # fmt: skip
    await session.answer_by_size(request, response, len(unknown))


HANDLERS: dict[int, Handler] = {
    29: Handler(describe_acls, one_part),
    30: Handler(create_acls, parts_of("creations")),
    31: Handler(delete_acls, parts_of("filters")),
    50: Handler(describe_scram_users, parts_of("users")),
    66: Handler(list_transactions, parts_of("state_filters")),
}
