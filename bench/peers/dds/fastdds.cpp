// Fast DDS over UDP: reliable, keep-all, published asynchronously, which messages above 64 KiB need. The subscriber's listener runs in a thread of
// Fast DDS.

#include <fastdds/dds/domain/DomainParticipant.hpp>
#include <fastdds/dds/domain/DomainParticipantFactory.hpp>
#include <fastdds/dds/publisher/DataWriter.hpp>
#include <fastdds/dds/publisher/Publisher.hpp>
#include <fastdds/dds/subscriber/DataReader.hpp>
#include <fastdds/dds/subscriber/DataReaderListener.hpp>
#include <fastdds/dds/subscriber/SampleInfo.hpp>
#include <fastdds/dds/subscriber/Subscriber.hpp>
#include <fastdds/dds/topic/Topic.hpp>
#include <fastdds/dds/topic/TopicDataType.hpp>
#include <fastdds/rtps/transport/UDPv4TransportDescriptor.h>
#include <fastrtps/config.h>

#include <memory>
#include <vector>

#include "protocol.h"

using namespace eprosima::fastdds::dds;
using eprosima::fastdds::rtps::UDPv4TransportDescriptor;
using eprosima::fastrtps::rtps::InstanceHandle_t;
using eprosima::fastrtps::rtps::Locator_t;
using eprosima::fastrtps::rtps::SerializedPayload_t;

namespace {

constexpr uint32_t SOCKET_BYTES = 4 << 20;
// In front of the bytes: the encapsulation, and their number.
constexpr uint32_t PREFIX_BYTES = 8;

using Message = std::vector<uint8_t>;

// The type that fastddsgen would make of `sequence<octet>`, with one copy instead of a loop.
class MessageType : public TopicDataType {
public:
    MessageType() {
        setName("Message");
        m_typeSize = 1 << 10; // At first: histories grow with what is written.
        m_isGetKeyDefined = false;
    }

    bool serialize(void *data, SerializedPayload_t *payload) override {
        const auto &message = *static_cast<Message *>(data);
        const auto length = static_cast<uint32_t>(message.size());
        if (payload->max_size < PREFIX_BYTES + length) return false;
        const uint8_t little_endian[4] = {0, 1, 0, 0};
        payload->encapsulation = CDR_LE;
        std::memcpy(payload->data, little_endian, sizeof little_endian);
        std::memcpy(payload->data + 4, &length, sizeof length);
        std::memcpy(payload->data + PREFIX_BYTES, message.data(), length);
        payload->length = PREFIX_BYTES + length;
        return true;
    }

    bool deserialize(SerializedPayload_t *payload, void *data) override {
        uint32_t length = 0;
        if (payload->length < PREFIX_BYTES) return false;
        std::memcpy(&length, payload->data + 4, sizeof length);
        if (length > payload->length - PREFIX_BYTES) return false;
        auto &message = *static_cast<Message *>(data);
        message.resize(length);
        std::memcpy(message.data(), payload->data + PREFIX_BYTES, length);
        return true;
    }

    std::function<uint32_t()> getSerializedSizeProvider(void *data) override {
        return [data] { return PREFIX_BYTES + static_cast<uint32_t>(static_cast<Message *>(data)->size()); };
    }

    void *createData() override { return new Message; }
    void deleteData(void *data) override { delete static_cast<Message *>(data); }
    bool getKey(void *, InstanceHandle_t *, bool) override { return false; }
};

template <typename T> T *checked(T *made, const char *what) {
    if (made == nullptr) fail(what);
    return made;
}

struct Writer {
    DataWriter *writer;
    Message message;
};

void publish(void *context) {
    auto &writer = *static_cast<Writer *>(context);
    if (!writer.writer->write(&writer.message)) fail("write failed");
}

class Listener : public DataReaderListener {
public:
    explicit Listener(bool read) : read_(read) {}

    void on_data_available(DataReader *reader) override {
        SampleInfo info;
        while (reader->take_next_sample(&message_, &info) == ReturnCode_t::RETCODE_OK) {
            if (info.valid_data) got(message_.data(), message_.size(), read_);
        }
    }

private:
    Message message_;
    bool read_;
};

// Over UDP alone: by default, processes of one machine would use shared memory.
DomainParticipantQos over_udp(const arguments &arguments) {
    DomainParticipantQos qos;
    auto udp = std::make_shared<UDPv4TransportDescriptor>();
    udp->interfaceWhiteList.emplace_back(arguments.own);
    udp->sendBufferSize = udp->receiveBufferSize = SOCKET_BYTES;
    qos.transport().use_builtin_transports = false;
    qos.transport().user_transports.push_back(udp);
    Locator_t peer;
    peer.kind = LOCATOR_KIND_UDPv4;
    eprosima::fastrtps::rtps::IPLocator::setIPv4(peer, arguments.other);
    qos.wire_protocol().builtin.initialPeersList.push_back(peer);
    return qos;
}

} // namespace

int main(int argc, char **argv) {
    const arguments arguments = parse(argc, argv, "Fast-DDS", FASTRTPS_VERSION_STR);
    auto *factory = DomainParticipantFactory::get_instance();
    auto *participant = checked(factory->create_participant(arguments.domain, over_udp(arguments)), "no participant");
    TypeSupport type(new MessageType);
    type.register_type(participant);
    auto *topic = checked(participant->create_topic("rgaps_bench", "Message", TOPIC_QOS_DEFAULT), "no topic");
    if (arguments.is_publisher) {
        DataWriterQos qos;
        qos.reliability().kind = RELIABLE_RELIABILITY_QOS;
        qos.reliability().max_blocking_time = {60, 0};
        qos.history().kind = KEEP_ALL_HISTORY_QOS;
        qos.publish_mode().kind = ASYNCHRONOUS_PUBLISH_MODE;
        qos.endpoint().history_memory_policy = eprosima::fastrtps::rtps::DYNAMIC_REUSABLE_MEMORY_MODE;
        auto *publisher = checked(participant->create_publisher(PUBLISHER_QOS_DEFAULT), "no publisher");
        Writer writer{checked(publisher->create_datawriter(topic, qos), "no writer"), Message(arguments.bytes)};
        serve(writer.message.data(), writer.message.size(), publish, &writer);
    } else {
        DataReaderQos qos;
        qos.reliability().kind = RELIABLE_RELIABILITY_QOS;
        qos.history().kind = KEEP_ALL_HISTORY_QOS;
        qos.endpoint().history_memory_policy = eprosima::fastrtps::rtps::DYNAMIC_REUSABLE_MEMORY_MODE;
        Listener listener(arguments.read);
        auto *subscriber = checked(participant->create_subscriber(SUBSCRIBER_QOS_DEFAULT), "no subscriber");
        checked(subscriber->create_datareader(topic, qos, &listener), "no reader");
        say_ready();
        wait_for_the_end();
        participant->delete_contained_entities();
    }
    return 0;
}
