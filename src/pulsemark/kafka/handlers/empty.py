"""Questions about things that this broker lacks: Kafka's ACLs, SCRAM users, transactions.

They are answered as by a Kafka without them, so that tools that ask go on: lists are empty, and
changes of ACLs are refused, as by a Kafka without an authorizer.
"""

from __future__ import annotations

from collections import Counter

from kafka.protocol.admin import (
    CreateAclsResponse,
    DeleteAclsResponse,
    DescribeAclsResponse,
    DescribeUserScramCredentialsResponse,
    ListTransactionsResponse,
)

from ..errors import Code, KafkaError
from ..session import Handler, KafkaSession
from ..wire import Request

__all__ = ["HANDLERS"]

NO_ACLS = "No Authorizer is configured: permissions are those of Pulsar's namespaces and topics."
NO_SUCH_USER = "Attempt to describe a user credential that does not exist"
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


def create_acls(session: KafkaSession, request: Request) -> None:
    """Each is refused."""
    code, message = _refusal(session, Code.SECURITY_DISABLED, NO_ACLS)
    refused = CreateAclsResponse.AclCreationResult(error_code=code, error_message=message)
    results = [refused for _ in request.body.creations or ()]
    session.answer(request, CreateAclsResponse(throttle_time_ms=0, results=results))


def delete_acls(session: KafkaSession, request: Request) -> None:
    """Each is refused."""
    code, message = _refusal(session, Code.SECURITY_DISABLED, NO_ACLS)
    refused = DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=code, error_message=message, matching_acls=[]
    )
    results = [refused for _ in request.body.filters or ()]
    session.answer(request, DeleteAclsResponse(throttle_time_ms=0, filter_results=results))


def describe_scram_users(session: KafkaSession, request: Request) -> None:
    """There is no such user. Null or an empty list asks for all."""
    code, message = _refusal(session, Code.NONE, None)
    names = Counter(each.name or "" for each in request.body.users or ())
    results = [
        _User(
            user=name,
            error_code=Code.RESOURCE_NOT_FOUND if times == 1 else Code.DUPLICATE_RESOURCE,
            error_message=NO_SUCH_USER if times == 1 else "a user is named more than once",
            credential_infos=[],
        )
        for name, times in names.items()
        if code is Code.NONE
    ]
    response = DescribeUserScramCredentialsResponse(
        throttle_time_ms=0, error_code=code, error_message=message, results=results
    )
    session.answer(request, response)


def list_transactions(session: KafkaSession, request: Request) -> None:
    """The broker has no such thing: an empty list."""
    asked = dict.fromkeys(request.body.state_filters or ())
    unknown = [state for state in asked if state not in STATES]
    response = ListTransactionsResponse(
        throttle_time_ms=0, error_code=Code.NONE, unknown_state_filters=unknown,
        transaction_states=[],
    )  # fmt: skip
    session.answer(request, response)


HANDLERS: dict[int, Handler] = {
    29: describe_acls,
    30: create_acls,
    31: delete_acls,
    50: describe_scram_users,
    66: list_transactions,
}
